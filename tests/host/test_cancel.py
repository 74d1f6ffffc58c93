"""Cancel: forwarded, cascaded, drained, bounded; and what it means to those who were not cancelled."""

from __future__ import annotations

import logging

import msgspec
import pytest
import trio

from capdag.errors import AttributionClass
from capdag.wire import (
    CancelReason,
    Frame,
    FrameType,
    LogRecord,
    encode_value,
    failure_of,
    fnv1a_64,
    log_frame,
    read_cancel,
)
from tests.host.driver import LINKS, QUICK, Bench, bench, record
from tests.misbehave import CALL, CAP, GOOD

DEADLINE = CancelReason("DEADLINE_EXCEEDED", AttributionClass.RESOURCE, "too slow")


async def active(it: Bench, count: int) -> None:
    await it.relay.until(lambda: it.cartridge()["active"] == count)


@LINKS
async def test_handler_ends_a_cancelled_request_with_its_reason(link: str) -> None:
    """H25."""
    async with bench(record(), link=link) as it:
        call = it.relay.call(CAP)
        await active(it, 1)
        call.cancel(DEADLINE)
        assert await call.failed("DEADLINE_EXCEEDED") == "too slow"
        assert it.state() == "running"


@LINKS
async def test_cancelled_answer_is_thrown_away_and_granted(link: str) -> None:
    """H25: a handler that writes on under credit comes to its end, which then is no success."""
    async with bench(record("WritesOn"), link=link) as it:
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: len(call.of(FrameType.CHUNK)) == 32)
        call.cancel()
        await call.failed("CANCELLED")
        assert len(call.of(FrameType.CHUNK)) == 32
        assert len(call.terminals) == 1
        drops = it.protocol["drops"]
        assert drops["by_reason_frame_type"]["cancelled"] == {"chunk": 168, "stream_end": 1}
        assert "credit_violation" not in drops["by_reason"]
        assert it.state() == "running"


@LINKS
async def test_end_that_was_faster_than_the_cancel_stands(link: str) -> None:
    """H24."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        await it.relay.call(GOOD).body(b"x").succeeded()
        call = it.relay.call(GOOD).body(b"x")
        call.cancel()
        terminal = await call.ended()
        assert terminal.type is FrameType.END or terminal.meta["code"] == "CANCELLED"
        assert len(call.terminals) == 1


@LINKS
async def test_ignored_cancel_is_bounded_when_nothing_else_is_held(link: str) -> None:
    """H26."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        call = it.relay.call(CAP).body(b"x")
        await active(it, 1)
        began = trio.current_time()
        call.cancel()
        await call.failed("CANCELLED")
        assert trio.current_time() - began >= QUICK.cancel_grace_idle
        assert it.cartridge()["last_exit"] == "was killed by SIGKILL"
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


@LINKS
async def test_ignored_cancel_is_bounded_when_others_are_held_and_they_are_collateral(link: str) -> None:
    """H26."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        call, bystander = it.relay.call(CAP).body(b"x"), it.relay.call(CAP).body(b"y")
        await active(it, 2)
        began = trio.current_time()
        call.cancel()
        assert "did not end a cancelled request in time" in await bystander.failed("ABORTED_COLLATERAL")
        await call.failed("CANCELLED")
        assert trio.current_time() - began >= QUICK.cancel_grace_busy
        assert failure_of(bystander.terminals[0].meta).attribution is AttributionClass.ENVIRONMENT


@LINKS
@pytest.mark.parametrize("reason", [CancelReason(), DEADLINE])
async def test_force_kill_ends_at_once_with_the_code_of_its_reason(link: str, reason: CancelReason) -> None:
    """H27."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        call, bystander = it.relay.call(CAP).body(b"x"), it.relay.call(CAP).body(b"y")
        await active(it, 2)
        call.cancel(reason, force_kill=True)
        await call.failed(reason.code)
        # The bystander's own user cancelled nothing.
        expected = "ABORTED_COLLATERAL" if reason.attribution is AttributionClass.USER else reason.code
        assert reason.message in await bystander.failed(expected)
        assert it.state() == "dead"


async def test_log_of_a_force_kill_says_that_it_was_one(caplog: pytest.LogCaptureFixture) -> None:
    """H27: whichever of its requests it was for."""
    async with bench(record("IgnoresCancel")) as it:
        call = it.relay.call(CAP).body(b"x")
        await active(it, 1)
        call.cancel(force_kill=True)
        await call.failed("CANCELLED")
    (error,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    text = "cartridge 'cart' was ended by the force_kill of a request that it held: the request was cancelled"
    assert error.startswith(f"ABORTED_COLLATERAL: {text}")


async def test_force_kill_after_a_plain_cancel_ends_the_wait() -> None:
    """H27."""
    async with bench(record("IgnoresCancel")) as it:
        call = it.relay.call(CAP).body(b"x")
        await active(it, 1)
        call.cancel(DEADLINE)
        call.cancel(force_kill=True)
        await call.failed("DEADLINE_EXCEEDED")


@LINKS
@pytest.mark.parametrize("force_kill", [False, True])
async def test_cancel_is_cascaded_to_the_calls_of_the_request(link: str, force_kill: bool) -> None:
    """H25."""
    async with bench(record(), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        call.cancel(DEADLINE, force_kill=force_kill)
        await call.failed("DEADLINE_EXCEEDED")
        cancels = [view for view in it.relay.loose if view.type is FrameType.CANCEL]
        assert {view.id for view in it.relay.loose} == {cancels[0].id}
        assert read_cancel(cancels[0].meta) == DEADLINE
        assert cancels[0].fields[18] is force_kill
        assert len(cancels) == 1
        # The call itself lives until its terminal: the callee has yet to end it.
        if not force_kill:
            assert it.protocol["outgoing_rids"] == 1
            it.relay.fail(cancels[0].id, xid=9)
        await it.relay.until(lambda: it.protocol["outgoing_rids"] == 0)


@LINKS
async def test_cancelled_call_without_terminal_is_ended_by_the_host(link: str) -> None:
    """H55: its process would never be idle again."""
    async with bench(record(), link=link, settings=msgspec.structs.replace(QUICK, call_grace=0.3)) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        call.cancel(DEADLINE)
        await call.failed("DEADLINE_EXCEEDED")
        assert (it.protocol["outgoing_rids"], it.cartridge()["calls"]) == (1, 1)
        await it.relay.until(lambda: (it.protocol["outgoing_rids"], it.cartridge()["calls"]) == (0, 0))
        assert [view.type for view in it.relay.loose].count(FrameType.CANCEL) == 1
        it.relay.fail(it.relay.loose[0].id, xid=9)
        await it.relay.until(lambda: it.protocol["stragglers"]["total"] >= 1)


@LINKS
async def test_caller_of_a_cancelled_call_gets_its_terminal_and_nothing_else(link: str) -> None:
    """H29: it would have granted a CHUNK that reached it."""
    async with bench(record(), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: len(it.relay.loose) == 5)
        rid = it.relay.loose[0].id
        call.cancel()
        await call.failed("CANCELLED")
        payload = encode_value(b"late")
        for frame in (
            log_frame(rid, LogRecord("progress", "late", 0.5)),
            Frame(FrameType.STREAM_START, rid, stream_id="s", media_urn="media:octets"),
            Frame(FrameType.CHUNK, rid, stream_id="s", payload=payload, chunk_index=0, checksum=fnv1a_64(payload)),
        ):
            frame.routing_id = 9
            it.relay.send(frame)
        await it.relay.until(lambda: it.protocol["drops"]["by_reason"].get("cancelled") == 3)
        it.relay.fail(rid, xid=9)
        await it.relay.until(lambda: it.protocol["outgoing_rids"] == 0)
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert not [view for view in it.relay.loose if view.type is FrameType.CREDIT]


@LINKS
async def test_cancelled_body_is_not_forwarded(link: str) -> None:
    """H25."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        call = it.relay.call(CAP)
        call.start()
        await active(it, 1)
        call.cancel()
        call.chunk(b"x")
        call.finish(1)
        await call.failed("CANCELLED")
        dropped = it.protocol["drops"]["by_reason_frame_type"]["cancelled"]
        assert (dropped["chunk"], dropped["stream_end"], dropped["end"]) == (1, 1, 1)


@LINKS
async def test_close_stream_is_passed_on_and_ends_nothing(link: str) -> None:
    """H16."""
    async with bench(record("ClosesStream"), link=link) as it:
        call = it.relay.call(CAP)
        call.start()
        await active(it, 1)
        call.close_stream("arg")
        assert await call.succeeded() == b"closed arg"
