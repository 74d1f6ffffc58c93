"""What `capdag ps` shows of a switch."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from capdag.cli.ps import _show
from capdag.relay import open_switch
from tests.relay.masters import ECHO, Caller
from tests.relay.test_queue import bounded


async def test_requests_that_wait_are_shown_by_their_cap(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_switch() as switch:
        async with bounded(switch, 1):
            _show({"8080": {"switch": switch.snapshot()}})
            assert "QUEUED FOR" not in capsys.readouterr().out
            for _ in range(3):
                switch.open_request(ECHO, Caller())
            await trio.sleep(2.5)
            _show({"8080": {"switch": switch.snapshot()}})
            header, row = capsys.readouterr().out.splitlines()[-2:]
            assert header.split("  ")[1] == "QUEUED FOR"
            assert row.split() == [ECHO, "2", "2.5", "s"]
        _show({"8080": {"switch": switch.snapshot()}})
        assert capsys.readouterr().out.splitlines()[-1].endswith("2.5 s         no host offers it")
