"""Calls that cartridges make: across hosts, and back to the same one."""

from __future__ import annotations

import logging

import pytest
from trio.testing import MockClock

from capdag.relay import SwitchSettings, open_switch
from capdag.wire import (
    DEFAULT_LIMITS,
    REQUEST,
    RESPONSE,
    CancelReason,
    Frame,
    FrameType,
    cancel_frame,
    credit_frame,
)
from tests.relay.masters import ECHO, UPPER, Answer, Caller, LinkKind, connected, peer_call, ready, until

PEER = b"peer call id 16b"


async def test_a_call_to_another_host(kind: LinkKind, clock: MockClock | None) -> None:
    """S16."""
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        switch.open_request(UPPER, Caller())  # XID 1
        await a.next(FrameType.REQ)
        a.send(*peer_call(PEER, b"\x42hi"))
        received = await b.take_request()
        sent = [view for view in b.seen if view.id == PEER]
        assert [(view.type.name, view.seq, view.xid) for view in sent] == [
            ("REQ", 0, 2),
            ("STREAM_START", 1, 2),
            ("CHUNK", 2, 2),
            ("STREAM_END", 3, 2),
            ("END", 4, 2),
        ]
        answer = received.answer
        b.send(answer.start(), answer.progress(0.5), answer.chunk(b"\x42hi"), answer.stream_end(), answer.end())
        back = [await a.next() for _ in range(6)]
        assert [(view.type.name, view.xid) for view in back] == [
            ("CREDIT", 2),
            ("STREAM_START", 2),
            ("LOG", 2),
            ("CHUNK", 2),
            ("STREAM_END", 2),
            ("END", 2),
        ]
        assert len(switch.snapshot()["requests"]["active"]) == 1


async def test_grants_travel_by_their_direction(kind: LinkKind, clock: MockClock | None) -> None:
    """S15."""
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER, b"\x42hi")[:3])
        req = await b.next(FrameType.REQ)
        await b.skip_to(FrameType.CHUNK)
        b.send(credit_frame(PEER, "arg-0", 1, REQUEST, xid=req.xid))
        grant = await a.next(FrameType.CREDIT)
        assert (grant.meta, grant.fields[19], grant.stream_id) == ({"credit_dir": "request"}, 1, "arg-0")
        answer = Answer(PEER, req.xid)
        b.send(answer.start(), *answer.chunks(3))
        await a.skip_to(FrameType.CHUNK)
        # With or without the XID, as the caller's SDK knows it or not.
        a.send(credit_frame(PEER, "out-0", 1, RESPONSE), credit_frame(PEER, "out-0", 2, RESPONSE, xid=req.xid))
        grants = [await b.next(FrameType.CREDIT), await b.next(FrameType.CREDIT)]
        assert [(view.fields[19], view.xid) for view in grants] == [(1, req.xid), (2, req.xid)]
        # From the wrong side, without a direction or for nobody: counted, not routed.
        lost = {"no_route": {"credit": 1}, "protocol_violation": {"credit": 3}}
        a.send(credit_frame(PEER, "arg-0", 1, REQUEST), credit_frame(4711, "x", 1, RESPONSE))
        b.send(credit_frame(PEER, "out-0", 1, RESPONSE, xid=req.xid))
        b.send(Frame(FrameType.CREDIT, PEER, credit=1, routing_id=req.xid))
        await until(lambda: switch.snapshot()["drops"]["by_reason_frame_type"] == lost)


async def test_frames_that_go_nowhere_name_their_link(
    kind: LinkKind, clock: MockClock | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "capdag.relay")
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER, b"\x42hi")[:3])
        req = await b.next(FrameType.REQ)
        b.send(Frame(FrameType.CREDIT, PEER, stream_id="arg-0", credit=1, routing_id=req.xid))
        b.send(cancel_frame(PEER, CancelReason(), xid=req.xid))
        a.send(credit_frame(4711, "x", 1, RESPONSE))
        await until(lambda: switch.snapshot()["drops"]["total"] == 3)
    lines = [entry.getMessage() for entry in caplog.records if "dropped" in entry.getMessage()]
    assert any(line.startswith("b: dropped CREDIT") and "must be 'request', not None" in line for line in lines)
    assert any(line.startswith("b: dropped CANCEL") and "a handler may not send it" in line for line in lines)
    assert any(line.startswith("a: dropped CREDIT of request 4711") and line.endswith("no_route") for line in lines)


async def test_a_call_without_a_cap_is_told_what_it_lacks(kind: LinkKind, clock: MockClock | None) -> None:
    """S16."""
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a:
        a.send(Frame(FrameType.REQ, PEER, content_type="application/cbor", payload=b""))
        err = await a.next(FrameType.ERR)
        assert err.meta["code"] == "INVALID_REQUEST"
        assert "a REQ must name a cap URN in key 10" in err.meta["message"]


async def test_a_call_back_to_the_same_host(kind: LinkKind, clock: MockClock | None) -> None:
    """S16: The XID tells the directions apart: the caller's frames have none, the handler's have it."""
    async with open_switch() as switch, ready(switch, "a", kind, ECHO, UPPER) as a:
        a.send(*peer_call(PEER, b"\x42hi"))
        received = await a.take_request()
        assert received.payload == b"\x42hi"
        answer = received.answer
        a.send(answer.start(), answer.chunk(b"\x42hi"), answer.grant(0), answer.stream_end(), answer.end())
        came = [await a.next() for _ in range(6)]
        assert [view.type.name for view in came] == ["CREDIT", "STREAM_START", "CHUNK", "CREDIT", "STREAM_END", "END"]
        assert {view.xid for view in came} == {1}
        assert switch.snapshot()["requests"]["active"] == []
        assert switch.snapshot()["requests"]["terminated_by_kind"] == {"end": 1}


async def test_an_error_without_xid_on_the_way_back_to_the_same_host(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, ECHO) as a:
        a.send(*peer_call(PEER, b"\x42hi"))
        await a.take_request()
        a.send(Answer(PEER, None).err("SPAWN_FAILED", "environment", "no"))
        assert (await a.skip_to(FrameType.ERR)).xid == 1
        assert switch.snapshot()["requests"]["terminated_by_kind"] == {"err": 1}


async def test_a_caller_may_give_up_its_body(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, ECHO) as a:
        a.send(*peer_call(PEER, b"\x42hi")[:3], Answer(PEER, None).err())
        came = [await a.next() for _ in range(4)]
        assert [(view.type.name, view.xid) for view in came] == [
            ("REQ", 1),
            ("STREAM_START", 1),
            ("CHUNK", 1),
            ("ERR", 1),
        ]
        assert len(switch.snapshot()["requests"]["active"]) == 1
        a.send(Answer(PEER, 1).err())
        assert (await a.next(FrameType.ERR)).xid == 1
        assert switch.snapshot()["requests"]["active"] == []


@pytest.mark.parametrize(
    ("cap", "code", "attribution"),
    [
        ("cap:nobody", "NO_HANDLER", "environment"),
        ("nonsense", "INVALID_REQUEST", "input"),
    ],
)
async def test_a_call_that_cannot_go_anywhere(
    kind: LinkKind, clock: MockClock | None, cap: str, code: str, attribution: str
) -> None:
    """S16."""
    async with open_switch() as switch, ready(switch, "a", kind, ECHO) as a:
        a.send(*peer_call(PEER, cap=cap))
        error = await a.next(FrameType.ERR)
        assert (error.id, error.xid, error.meta["code"], error.meta["attribution_class"]) == (
            PEER,
            None,
            code,
            attribution,
        )
        assert switch.snapshot()["requests"]["total_registered"] == 0


async def test_a_call_without_a_cap(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, ECHO) as a:
        a.send(Frame(FrameType.REQ, PEER))
        assert (await a.next(FrameType.ERR)).meta["code"] == "INVALID_REQUEST"


async def test_a_call_into_a_full_table(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch(SwitchSettings(table_limit=1)) as switch, ready(switch, "a", kind, ECHO) as a:
        switch.open_request(ECHO, Caller())
        await a.next(FrameType.REQ)
        a.send(*peer_call(PEER)[:1])
        error = await a.next(FrameType.ERR)
        assert (error.meta["code"], error.meta["attribution_class"], error.xid) == ("TABLE_FULL", "resource", None)


async def test_a_call_of_a_host_that_has_not_proved_its_identity(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "good", kind, ECHO), connected(switch, "a", kind) as a:
        a.notify(UPPER)
        a.send(*peer_call(PEER)[:1])
        error = await a.skip_to(FrameType.ERR)
        assert (error.id, error.xid, error.meta["code"]) == (PEER, None, "PROTOCOL_VIOLATION")
        assert "before its identity was proved" in error.meta["message"]


async def test_one_id_for_two_calls_of_one_host(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER))
        await b.take_request()
        a.send(*peer_call(PEER))
        error = await a.next(FrameType.ERR)
        assert (error.xid, error.meta["code"]) == (1, "PROTOCOL_VIOLATION")
        assert (await b.next(FrameType.CANCEL)).meta["code"] == "PROTOCOL_VIOLATION"
        b.send(Answer(PEER, 1).err())
        await until(lambda: not switch.snapshot()["requests"]["active"])
        assert a.untaken() == []
        assert b.untaken() == []


async def test_an_id_that_is_another_hosts(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER))
        received = await b.take_request()
        b.send(*peer_call(PEER, cap=UPPER)[:1])
        error = await b.next(FrameType.ERR)
        assert (error.xid, error.meta["code"]) == (None, "PROTOCOL_VIOLATION")
        b.send(received.answer.end())
        assert (await a.next(FrameType.END)).xid == 1


async def test_an_id_can_be_used_again_once_its_request_has_ended(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        for xid in (1, 2):
            a.send(*peer_call(PEER))
            received = await b.take_request()
            assert received.req.xid == xid
            b.send(received.answer.end())
            assert (await a.next(FrameType.END)).xid == xid
        assert switch.snapshot()["stragglers"]["total"] == 0


async def test_a_host_that_is_no_part_of_a_request_cannot_touch_it(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO) as b,
        ready(switch, "c", kind, "cap:other") as c,
    ):
        a.send(*peer_call(PEER)[:1])
        await b.next(FrameType.REQ)
        answer = Answer(PEER, 1)
        c.send(answer.start(), answer.grant(5), Frame(FrameType.CANCEL, PEER), answer.err())
        c.send(Frame(FrameType.CLOSE_STREAM, PEER))
        # Nor can the handler's side cancel it.
        b.send(Frame(FrameType.CANCEL, PEER, routing_id=1))
        await until(lambda: switch.snapshot()["drops"]["total"] == 6)
        assert (a.untaken(), b.untaken()) == ([], [])


@pytest.mark.parametrize("kind_of_frame", [FrameType.CREDIT, FrameType.CLOSE_STREAM])
async def test_a_longer_frame_than_the_handlers_link_takes(
    kind: LinkKind, clock: MockClock | None, kind_of_frame: FrameType
) -> None:
    small = DEFAULT_LIMITS._replace(max_frame=300)
    async with (
        open_switch() as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO, limits=small) as b,
    ):
        a.send(*peer_call(PEER))
        await b.take_request()
        a.send(Frame(kind_of_frame, PEER, credit=1, meta={"credit_dir": "response", "padding": "x" * 300}))
        assert (await a.skip_to(FrameType.ERR)).meta["code"] == "PROTOCOL_VIOLATION"
        assert (await b.next(FrameType.CANCEL)).meta["code"] == "PROTOCOL_VIOLATION"


async def test_a_longer_frame_than_the_callers_link_takes(kind: LinkKind, clock: MockClock | None) -> None:
    small = DEFAULT_LIMITS._replace(max_frame=300)
    async with (
        open_switch() as switch,
        ready(switch, "a", kind, UPPER, limits=small) as a,
        ready(switch, "b", kind, ECHO) as b,
    ):
        a.send(*peer_call(PEER))
        received = await b.take_request()
        answer = received.answer
        b.send(answer.start(), answer.chunk(b"\x59\x01\x2c" + b"x" * 300))
        await a.next(FrameType.STREAM_START)
        error = await a.next(FrameType.ERR)
        assert (error.meta["code"], error.xid, error.seq) == ("PROTOCOL_VIOLATION", 1, 1)
        assert (await b.next(FrameType.CANCEL)).meta["code"] == "PROTOCOL_VIOLATION"
