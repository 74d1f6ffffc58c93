"""What is bounded: rows, windows along a path, what a cartridge that does not read is owed; and the snapshot."""

from __future__ import annotations

import msgspec
import pytest

from capdag.host import HostSettings
from capdag.wire import FrameType
from tests.host.driver import LINKS, QUICK, bench, record
from tests.misbehave import CALL, CAP, GOOD


@LINKS
async def test_full_table_refuses_new_requests_and_touches_no_live_one(link: str) -> None:
    async with bench(record(), link=link, settings=msgspec.structs.replace(QUICK, table_limit=2)) as it:
        first, second = it.relay.call(CAP), it.relay.call(CAP)
        assert "raise table_limit" in await it.relay.call(CAP).failed("TABLE_FULL")
        first.body(b"x")
        assert await first.succeeded() == b"x"
        second.body(b"y")
        assert await second.succeeded() == b"y"
        assert it.protocol["routing_gc_evicted_total"] == 0


@LINKS
async def test_full_table_refuses_calls_of_cartridges(link: str) -> None:
    async with bench(record(), link=link, settings=msgspec.structs.replace(QUICK, table_limit=1)) as it:
        it.relay.loops = False
        await it.relay.call(GOOD).body(b"x").succeeded()
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: it.protocol["outgoing_rids"] == 1)
        assert it.relay.loose[0].type is FrameType.REQ
        it.relay.fail(it.relay.loose[0].id, xid=9)
        await call.failed("HANDLER_ERROR")


@LINKS
async def test_sender_with_a_wider_window_is_held_to_what_the_requester_knows(link: str) -> None:
    """One cartridge agreed on 2, so 2 is advertised; another's window is 32 and it uses it at once."""
    small = record("SmallWindow", name="small", caps=["cap:small"])
    async with bench(small, record("WritesOn"), link=link) as it:
        await it.relay.call("cap:small").body(b"x").succeeded()
        await it.relay.until(lambda: it.relay.notices[-1].limits.initial_credit == 2)
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: len(call.of(FrameType.CHUNK)) == 2)
        await it.relay.call(GOOD).body(b"y").succeeded()
        assert len(call.of(FrameType.CHUNK)) == 2
        call.grants = True
        call.grant("out", 2)
        await call.ended()
        assert [view.fields[14] for view in call.of(FrameType.CHUNK)] == list(range(200))
        assert call.frames[-1].type is FrameType.END


@LINKS
async def test_cancel_of_an_answer_that_waits_for_its_requester_ends_it(link: str) -> None:
    small = record("SmallWindow", name="small", caps=["cap:small"])
    async with bench(small, record("FourPieces"), link=link) as it:
        await it.relay.call("cap:small").body(b"x").succeeded()
        await it.relay.until(lambda: it.relay.notices[-1].limits.initial_credit == 2)
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: len(call.of(FrameType.CHUNK)) == 2)
        await it.relay.call(GOOD).body(b"y").succeeded()  # the handler's END has come by now, and waits
        call.cancel()
        await call.failed("CANCELLED")


@LINKS
async def test_answer_that_waits_for_its_requester_outlives_the_process(link: str) -> None:
    small = record("SmallWindow", name="small", caps=["cap:small"])
    async with bench(small, record("FourPiecesAndLeaves"), link=link) as it:
        await it.relay.call("cap:small").body(b"x").succeeded()
        await it.relay.until(lambda: it.relay.notices[-1].limits.initial_credit == 2)
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: it.state() == "dead")
        assert len(call.of(FrameType.CHUNK)) == 2
        call.grant("out", 2)
        assert await call.succeeded() == b"0123"


async def test_snapshot_has_the_shape_of_the_protocol_stats() -> None:
    async with bench(record()) as it:
        call = it.relay.call(CAP)
        await it.relay.until(lambda: it.cartridge()["active"] == 1)
        assert it.host.snapshot() == {
            "policy": "no_telemetry",
            "cartridges": [
                {
                    "id": "cart",
                    "state": "running",
                    "pid": it.cartridge()["pid"],
                    "active": 1,
                    "waiting": 0,
                    "calls": 0,
                    "restarts": 0,
                    "failed_starts": 0,
                    "pause": 0.0,
                    "last_exit": None,
                    "trouble": None,
                    "caps": [CAP, GOOD, CALL],
                    "pools": it.cartridge()["pools"],
                }
            ],
            "protocol": {
                "drops": {"total": 0, "by_reason": {}, "by_reason_frame_type": {}},
                "stragglers": {"total": 0, "by_frame_type": {}},
                "outgoing_rids": 0,
                "incoming_rxids": 1,
                "incoming_to_peer_rids": 0,
                "outgoing_max_seq": 1,
                "routing_gc_runs_total": 0,
                "routing_gc_evicted_total": 0,
            },
        }
        call.body(b"x")
        await call.succeeded()


@pytest.mark.parametrize("name", ["heartbeat_interval", "handshake_timeout", "cancel_grace_busy", "table_limit"])
def test_settings_have_the_defaults_of_the_contract(name: str) -> None:
    expected = {"heartbeat_interval": 30, "handshake_timeout": 30, "cancel_grace_busy": 30, "table_limit": 65_536}
    assert getattr(HostSettings(), name) == expected[name]
