"""Short runs of chaos over both kinds of link; `python -m tests.chaos` replays a seed, and runs longer."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.chaos.run import run


@pytest.mark.parametrize(("seed", "link"), [(1, "local"), (2, "socket"), (3, "socket")])
async def test_every_request_ends_once_and_nothing_is_left(
    seed: int, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    with trio.fail_after(60):
        report = await run(seed, 5, link)
    assert report.faults == []
    assert report.terminals == report.requests > 200
    assert report.events > 2000
    assert report.starts > 20
