"""Every routing test runs over both kinds of link: in virtual time in process, in real time over a socket."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from tests.relay.masters import LinkKind


@pytest.fixture(params=["local", "socket"])
def kind(request: pytest.FixtureRequest) -> LinkKind:
    """The kind of link. A test with it takes `clock` too."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def clock(kind: LinkKind) -> MockClock | None:
    """The clock that jumps when everything waits, except where a socket needs real time."""
    return MockClock(autojump_threshold=0) if kind == "local" else None


@pytest.fixture(autouse=True)
def no_turn_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A turn that raises is logged and ends by itself: here it fails the test, unless that has cleared the log."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []
