"""What `capdag ps` shows of a switch."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from capdag.cli.ps import _far_rows, _host_rows, _print, _show
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.relay import open_switch
from capdag.transport import local_link_pair
from tests.relay.masters import ECHO, Caller, bounded


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


async def test_what_ran_at_a_host_that_has_gone_is_gone(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_switch() as switch:
        async with bounded(switch, 1, name="far"):
            switch.open_request(ECHO, Caller())
            _show({"8080": {"switch": switch.snapshot()}})
            assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["far:", "cart", "running"]
        _show({"8080": {"switch": switch.snapshot()}})
        assert capsys.readouterr().out.splitlines()[2].split() == ["far:", "cart", "gone", "0"]


def test_cells_are_escaped_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    _print(("NAME", "TROUBLE"), [("a\x1b[2J\n", "x" * 1000)])
    assert capsys.readouterr().out == (f"  NAME        TROUBLE\n  a\\x1b[2J\\n  {'x' * 200}…\n")


@pytest.mark.parametrize(("error", "told"), [("late", "late"), ({"message": 5}, "5"), ([], ""), ({"kind": "x"}, "")])
def test_what_a_foreign_host_says_of_a_failure_may_be_anything(error: object, told: str) -> None:
    host = {"state": "ready", "installed_cartridges": [{"id": "a", "attachment_error": error, "runtime_stats": {}}]}
    (row,) = _far_rows("far", host)
    assert (row[1], row[-1]) == ("broken" if error else "not running", told)


async def test_pauses_and_pools_are_shown() -> None:
    host = HostRuntime([CartridgeRecord("mine", ["x"])], local_link_pair("host")[0], None, HostSettings())
    (facts,) = host.snapshot()["cartridges"]
    assert next(_host_rows({"cartridges": [facts]}))[1:7] == ("registered", "", "0", "0", "0", "")
    full = {"declared": 4, "configured": 4, "active": 2, "queued": 3, "available": 2}
    pools = {"all": full, "engine": {**full, "configured": 0, "available": 0, "queued": 0}}
    pools |= {
        'cap:chat;in="media:a;b";model=zen;out=media:c': full,
        "cap:in=media:a;out=media:b;shout": pools["engine"],
    }
    facts |= {"pause": 2.5, "trouble": "paused for 2.5 s: it crashed\nTraceback", "pools": pools}
    (row,) = _host_rows({"cartridges": [facts]})
    assert row == (
        "mine",
        "paused",
        "",
        "0",
        "0",
        "0",
        "all 2/2+3 engine 2/∞ chat;model=zen 2/2+3",
        "paused for 2.5 s: it crashed",
    )
