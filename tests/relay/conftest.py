"""Every routing test runs over both kinds of link: in virtual time in process, in real time over a socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from tests.relay.masters import LinkKind


@pytest.fixture(params=["local", "socket"])
def kind(request: pytest.FixtureRequest) -> LinkKind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def clock(request: pytest.FixtureRequest) -> Iterator[MockClock | None]:
    """The clock that jumps when everything waits, except where a socket needs real time."""
    kind = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    yield None if kind == "socket" else request.getfixturevalue("autojump_clock")
