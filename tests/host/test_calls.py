"""Calls that cartridges make: out through the relay, back to the caller, also where both ends are on this host."""

from __future__ import annotations

import os
import signal

import pytest

from capdag.errors import AttributionClass
from capdag.wire import (
    REQUEST,
    RESPONSE,
    Frame,
    FrameType,
    LogRecord,
    body_end_frame,
    credit_frame,
    encode_value,
    end_frame,
    failure_of,
    fnv1a_64,
    log_frame,
)
from tests.host.driver import LINKS, Bench, bench, record
from tests.misbehave import CALL, CAP, GOOD


def chunk(rid: object, xid: int, value: bytes, stream: str = "s", index: int = 0) -> Frame:
    payload = encode_value(value)
    return Frame(
        FrameType.CHUNK,
        rid,  # type: ignore[arg-type]
        stream_id=stream,
        payload=payload,
        chunk_index=index,
        checksum=fnv1a_64(payload),
        routing_id=xid,
    )


def stream_start(rid: object, xid: int, stream: str = "s") -> Frame:
    return Frame(FrameType.STREAM_START, rid, stream_id=stream, media_urn="media:octets", routing_id=xid)  # type: ignore[arg-type]


def stream_end(rid: object, xid: int, count: int, stream: str = "s") -> Frame:
    return Frame(FrameType.STREAM_END, rid, stream_id=stream, chunk_count=count, routing_id=xid)  # type: ignore[arg-type]


@LINKS
async def test_call_goes_out_without_xid_and_its_answer_comes_back_by_rid(link: str) -> None:
    """H13, H15, H16."""
    async with bench(record("Logs"), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"argument")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        request, *body = it.relay.loose
        assert [view.type.name for view in body] == ["STREAM_START", "CHUNK", "STREAM_END", "END"]
        assert {view.xid for view in it.relay.loose} == {None}
        assert request.fields[10] == GOOD
        assert request.meta["parent_rid"] == call.rid
        rid, xid = request.id, 55
        it.relay.send(
            log_frame(rid, LogRecord("progress", "of the callee", 0.1), xid=xid),
            stream_start(rid, xid),
            chunk(rid, xid, b"answer"),
            stream_end(rid, xid, 1),
        )
        await it.relay.until(lambda: len(it.relay.loose) == 6)
        it.relay.send(end_frame(rid, xid=xid))
        assert await call.succeeded() == b"answer"
        assert [view.meta["message"] for view in call.of(FrameType.LOG)] == ["of the callee", "half"]
        grant = it.relay.loose[5]
        assert (grant.type, grant.meta["credit_dir"], grant.stream_id) == (FrameType.CREDIT, RESPONSE, "s")


@LINKS
async def test_failed_call_ends_its_caller_as_the_caller_says(link: str) -> None:
    """H15."""
    async with bench(record(), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        it.relay.fail(it.relay.loose[0].id, xid=3)
        assert await call.failed("HANDLER_ERROR") == "call: no luck"


@LINKS
@pytest.mark.parametrize("misdeed", ["Nothing", "Logs"])
async def test_caller_and_callee_on_one_host(link: str, misdeed: str) -> None:
    """H17."""
    caller = record(name="caller", caps=[CALL], called=GOOD)
    callee = record(misdeed, name="callee", caps=[GOOD])
    async with bench(caller, callee, link=link) as it:
        calls = [it.relay.call(CALL).body(*(b"%d," % (n * m) for m in range(20))) for n in range(8)]
        for n, call in enumerate(calls):
            assert await call.succeeded() == b"".join(b"%d," % (n * m) for m in range(20))
            if misdeed == "Logs":
                assert [view.meta["message"] for view in call.of(FrameType.LOG)] == ["half"]
        assert it.protocol["drops"]["total"] == 0
        assert it.cartridge("callee")["active"] == it.cartridge("caller")["active"] == 0


@LINKS
async def test_cartridge_that_calls_itself(link: str) -> None:
    """H17."""
    async with bench(record(called=GOOD), link=link) as it:
        assert await it.relay.call(CALL).body(b"a", b"b").succeeded() == b"ab"
        assert it.protocol["drops"]["total"] == 0


@LINKS
async def test_callee_that_answers_before_the_body_ends(link: str) -> None:
    """H17: its frames come back while the body still does: the two are told apart."""
    caller = record("CallsSlowly", name="caller", caps=[CALL], called=CAP)
    callee = record("EchoesAtOnce", name="callee", caps=[CAP])
    async with bench(caller, callee, link=link) as it:
        assert await it.relay.call(CALL).body(*(b"%d," % n for n in range(10))).succeeded() == b"".join(
            b"%d," % n for n in range(10)
        )
        assert it.protocol["drops"]["total"] == 0


@LINKS
async def test_callee_that_ends_before_the_body(link: str) -> None:
    """H17."""
    caller = record("CallsSlowly", name="caller", caps=[CALL], called=CAP)
    callee = record("EndsAtOnce", name="callee", caps=[CAP])
    async with bench(caller, callee, link=link) as it:
        assert await it.relay.call(CALL).body(*(b"%d," % n for n in range(10))).succeeded() == b""
        await it.relay.until(lambda: it.protocol["outgoing_rids"] == 0)


@LINKS
async def test_callee_that_cannot_start_ends_the_call(link: str) -> None:
    """H17."""
    caller = record(name="caller", caps=[CALL], called=CAP)
    async with bench(caller, record("ExitBeforeHello", name="callee", caps=[CAP]), link=link) as it:
        assert "no such weights" in await it.relay.call(CALL).body(b"x").failed("SPAWN_FAILED")


@LINKS
async def test_callee_that_dies_ends_the_call(link: str) -> None:
    """H17, H33."""
    caller = record(name="caller", caps=[CALL], called=CAP)
    async with bench(caller, record("Dies", name="callee", caps=[CAP]), link=link) as it:
        assert "about to die" in await it.relay.call(CALL).body(b"x").failed("CARTRIDGE_DIED")
        assert it.state("caller") == "running"


@LINKS
async def test_cancel_reaches_a_callee_on_the_same_host(link: str) -> None:
    """H25."""
    caller = record(name="caller", caps=[CALL], called=CAP)
    callee = record("IgnoresCancel", name="callee", caps=[CAP])
    async with bench(caller, callee, link=link) as it:
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: it.cartridge("callee")["active"] == 1)
        call.cancel()
        await call.failed("CANCELLED")
        # The callee ignores it and is killed after its grace; the caller lives.
        await it.relay.until(lambda: it.cartridge("callee")["state"] == "dead")
        assert it.state("caller") == "running"
        await it.relay.until(lambda: it.protocol["outgoing_rids"] == 0)


@LINKS
async def test_caller_past_its_credit_loses_its_call_and_nothing_else(link: str) -> None:
    """H20."""
    async with bench(record("CallsWithoutCredit"), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CAP).body(b"x")
        assert "without credit" in await call.failed("CREDIT_VIOLATION")
        await it.relay.until(lambda: it.relay.loose[-1].type is FrameType.CANCEL)
        assert len([view for view in it.relay.loose if view.type is FrameType.CHUNK]) == 32
        assert it.relay.loose[-2].type is FrameType.ERR
        assert it.state() == "running"


@LINKS
async def test_grants_for_a_call_reach_its_caller(link: str) -> None:
    """H16."""
    async with bench(record("CallsUnderCredit"), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CAP).body(b"x")

        def chunks() -> list[Frame]:
            return [view.frame() for view in it.relay.loose if view.type is FrameType.CHUNK]

        await it.relay.until(lambda: len(chunks()) == 32)
        rid = it.relay.loose[0].id
        it.relay.send(credit_frame(rid, "out", 8, REQUEST, xid=5))
        await it.relay.until(lambda: len(chunks()) == 40)
        it.relay.fail(rid, xid=5)
        await call.failed("HANDLER_ERROR")


@LINKS
async def test_call_with_the_id_of_a_live_one_is_not_taken(link: str, caplog: pytest.LogCaptureFixture) -> None:
    """H13."""
    async with bench(record("CallsTwiceUnderOneId"), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.protocol["drops"]["total"] and len(it.relay.loose) > 30)
        assert len([view for view in it.relay.loose if view.type is FrameType.REQ]) == 1
        it.relay.fail(it.relay.loose[0].id, xid=5)
        await call.failed("HANDLER_ERROR")
    assert "cartridge 'cart': dropped REQ" in caplog.text
    assert "this is the id of a live call: use a new one for each" in caplog.text


@LINKS
async def test_call_under_the_id_of_one_whose_terminal_has_yet_to_come_is_refused(link: str) -> None:
    """H13: the first caller has died. The answer of its call would be taken for that of the second."""
    async with bench(record("CallsUnderCredit"), link=link) as it:
        it.relay.loops = False
        first = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.relay.loose)
        os.kill(it.cartridge()["pid"], signal.SIGKILL)
        await first.failed("CARTRIDGE_DIED")
        rid = it.relay.loose[0].id
        assert "has not ended: use a new id" in await it.relay.call(CAP).body(b"x").failed("PROTOCOL_VIOLATION")
        it.relay.fail(rid, xid=5)
        asked = len(it.relay.loose)
        again = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: FrameType.REQ in [view.type for view in it.relay.loose[asked:]])
        it.relay.fail(rid, xid=6)
        assert await again.failed("HANDLER_ERROR")


@LINKS
async def test_call_with_an_xid_is_refused(link: str) -> None:
    """H13."""
    async with bench(record("CallsWithXid"), link=link) as it:
        it.relay.loops = False
        assert "has no XID" in await it.relay.call(CAP).body(b"x").failed("PROTOCOL_VIOLATION")
        assert it.relay.loose == []


async def test_answer_over_the_callers_max_frame_ends_its_call() -> None:
    """H22."""
    async with bench(record("SmallWindow")) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        rid = it.relay.loose[0].id
        it.relay.send(stream_start(rid, 5), chunk(rid, 5, bytes(20_000)))
        assert "over the max_frame of 16384" in await call.failed("PROTOCOL_VIOLATION")
        await it.relay.until(lambda: len(it.relay.loose) >= 6)
        assert it.relay.loose[-1].type is FrameType.CANCEL


async def test_answer_is_held_to_what_the_caller_granted() -> None:
    """H21: the caller's window is 2; its answer comes in twelve CHUNKs at once, and END must not overtake them."""
    async with bench(record("SmallWindow")) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        rid = it.relay.loose[0].id
        pieces = [b"%d," % n for n in range(12)]
        it.relay.send(
            stream_start(rid, 5),
            *(chunk(rid, 5, piece, index=index) for index, piece in enumerate(pieces)),
            stream_end(rid, 5, 12),
            end_frame(rid, xid=5),
        )
        assert await call.succeeded() == b"".join(pieces)


@LINKS
async def test_link_of_the_relay_that_ends_cancels_and_fails_everything(link: str) -> None:
    """H41."""
    async with bench(record(), link=link) as it:
        it.relay.loops = False
        served, calling = it.relay.call(CAP), it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: it.cartridge()["active"] == 2 and it.protocol["outgoing_rids"] == 1)
        it.relay.link.close()
        await _empty(it)
        assert it.state() == "running"
        assert not served.terminals
        assert not calling.terminals


async def _empty(it: Bench) -> None:
    await it.relay.until(lambda: it.protocol["incoming_rxids"] == it.protocol["outgoing_rids"] == 0)


@LINKS
async def test_aborted_body_reaches_the_handler(link: str) -> None:
    """H16."""
    async with bench(record(), link=link) as it:
        call = it.relay.call(CAP)
        call.start()
        call.abort("HANDLER_ERROR", "the source failed")
        assert await call.failed("HANDLER_ERROR") == "body: the source failed"


@LINKS
async def test_request_without_xid_is_served_like_any_other(link: str) -> None:
    """H13."""
    async with bench(record(), link=link) as it:
        call = it.relay.call_without_xid(CAP).body(b"x")
        assert await call.succeeded() == b"x"
        assert {view.xid for view in call.frames} == {None}


@LINKS
async def test_refusals_carry_the_xid(link: str) -> None:
    """H18."""
    async with bench(record(), link=link) as it:
        assert "no cartridge of this host serves" in await it.relay.call("cap:unheard-of").failed("NO_HANDLER")
        assert "is no cap URN" in await it.relay.call("nonsense").failed("INVALID_REQUEST")
        it.relay.send(body_end_frame(b"n" * 16, xid=9))
        assert it.state() == "registered"


@LINKS
async def test_a_req_without_a_cap_is_its_requesters_mistake(link: str) -> None:
    """H18; the class is a departure of wire.md."""
    async with bench(record(), link=link) as it:
        failure = failure_of((await it.relay.call(None).ended()).meta)  # type: ignore[arg-type]
        assert (failure.code, failure.attribution) == ("INVALID_REQUEST", AttributionClass.INPUT)


@LINKS
@pytest.mark.parametrize(("ending", "kind"), [(b"well", "environment"), (b"fail", "resource")])
async def test_request_that_ends_takes_its_calls_along(link: str, ending: bytes, kind: str) -> None:
    """H56."""
    async with bench(record("LeavesItsCall"), link=link) as it:
        it.relay.loops = False
        request = it.relay.call(CAP).body(ending)
        await it.relay.until(lambda: request.terminals and len(it.relay.loose) == 6)
        assert request.terminals[0].type is (FrameType.END if ending == b"well" else FrameType.ERR)
        cancel = it.relay.loose[-1]
        assert (cancel.type, cancel.id) == (FrameType.CANCEL, it.relay.loose[0].id)
        assert (cancel.meta["code"], cancel.meta["attribution_class"]) == ("ABORTED_COLLATERAL", kind)
        assert it.protocol["outgoing_rids"] == it.cartridge()["calls"] == 1
        it.relay.fail(cancel.id, xid=9)
        await it.relay.until(lambda: not it.cartridge()["calls"])
        assert it.protocol["drops"]["total"] == 0
        it.check_empty()


@LINKS
async def test_callee_on_the_same_host_is_cancelled_when_the_request_that_called_it_ends(link: str) -> None:
    """H56."""
    caller = record("LeavesItsCall", name="caller", caps=[CAP])
    callee = record("Nothing", name="callee", caps=[GOOD])
    async with bench(caller, callee, link=link) as it:
        assert await it.relay.call(CAP).body(b"well").succeeded() == b"well"
        await it.relay.until(lambda: it.cartridge("caller")["calls"] == 0)
        assert (it.cartridge("callee")["active"], it.cartridge("callee")["waiting"]) == (0, 0)
        await it.relay.until(lambda: it.state("callee") == "running")
        it.check_empty()
