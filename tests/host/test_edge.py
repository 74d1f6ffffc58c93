"""The untrusted edge: what a cartridge must not send costs it its request or its life, and nobody else anything."""

from __future__ import annotations

import pytest

from capdag.wire import DEFAULT_LIMITS, CancelReason, Frame, FrameType, LogRecord, cancel_frame, hello_frame, log_frame
from tests.host.driver import LINKS, bench, record
from tests.misbehave import CAP, GOOD

NESTED = bytes([0, 0, 0x27, 0x14]) + bytes.fromhex("a40006010105") + b"\x81" * 10_000 + b"\x00" * 6


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("00000000", "frame length 0 at stream offset"),
        ("ffffffff", "frame length 4294967295 at stream offset"),
        (f"{DEFAULT_LIMITS.max_frame + 1:08x}", f"frame length {DEFAULT_LIMITS.max_frame + 1} at stream offset"),
        ("00000003a30006", "bad frame at stream offset"),
        ("00000009a4000601040200" + "0200", "bad frame at stream offset"),
        (NESTED[:600].hex() + "00" * (4 + 0x2714 - 600), "bad frame at stream offset"),
        ("0000000ca40006010402000a7f61610aff"[:34], "bad frame at stream offset"),
        (b"Loading model...\n".hex(), "Loading model...\\n"),
    ],
    ids=["zero", "huge", "over the limit", "truncated", "duplicate key", "deep", "indefinite", "text"],
)
async def test_bytes_that_are_no_frame_are_the_end_of_the_cartridge(data: str, told: str) -> None:
    """H23."""
    async with bench(record("BadBytes", data)) as it:
        bystander = it.relay.call(GOOD)
        bystander.start()
        message = await it.relay.call(CAP).body(b"x").failed("PROTOCOL_VIOLATION")
        assert told in message
        assert "cartridge 'cart' broke the protocol" in message
        # Whether it has left by itself, its stdin being closed, or was killed: the violation is the cause.
        assert message.endswith("; the host ended it")
        assert await bystander.failed("PROTOCOL_VIOLATION") == message
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


@LINKS
@pytest.mark.parametrize(
    ("misdeed", "kind"), [("SendsPolicy", "POLICY"), ("SendsHello", "HELLO"), ("SendsRelayState", "RELAY_STATE")]
)
async def test_frames_that_only_hosts_send_are_the_end_of_the_cartridge(link: str, misdeed: str, kind: str) -> None:
    """H23."""
    async with bench(record(misdeed), record(name="other", caps=["cap:other"]), link=link) as it:
        other = it.relay.call("cap:other")
        other.start()
        message = await it.relay.call(CAP).body(b"x").failed("PROTOCOL_VIOLATION")
        assert f"cartridge 'cart' sent {kind}" in message
        assert "it was killed by SIGKILL" in message
        other.chunk(b"z")
        other.finish(1)
        assert await other.succeeded() == b"z"
        assert it.host.snapshot()["policy"] == "no_telemetry"
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


@LINKS
@pytest.mark.parametrize(
    ("misdeed", "code", "told"),
    [
        ("IgnoresCredit", "CREDIT_VIOLATION", "sent a CHUNK on stream 'out' without credit (its window is 32)"),
        ("ManyStreams", "PROTOCOL_VIOLATION", "more than 64 streams"),
        ("FatPayload", "PROTOCOL_VIOLATION", "the most is 262149"),
    ],
)
async def test_sender_past_its_limits_loses_the_request_and_nothing_else(
    link: str, misdeed: str, code: str, told: str
) -> None:
    """H20."""
    async with bench(record(misdeed), link=link) as it:
        bystander = it.relay.call(GOOD)
        bystander.start()
        call = it.relay.call(CAP)
        call.grants = False
        assert told in await call.body(b"x").failed(code)
        assert len(call.of(FrameType.CHUNK)) <= 32
        assert len(call.of(FrameType.STREAM_START)) <= 64
        bystander.chunk(b"y")
        bystander.finish(1)
        assert await bystander.succeeded() == b"y"
        # The handler was sent CANCEL and has wound down; its own ERR went nowhere.
        await it.relay.until(lambda: it.cartridge()["active"] == 0)
        assert len(call.terminals) == 1
        assert it.protocol["drops"]["by_reason"][code.lower()] == 1
        assert it.cartridge()["restarts"] == 0
        assert it.state() == "running"


@LINKS
@pytest.mark.parametrize("misdeed", ["AnswersTwice", "AnswersAStranger"])
async def test_answer_that_nobody_waits_for_is_counted_and_no_more(link: str, misdeed: str) -> None:
    """H15, H19."""
    async with bench(record(misdeed), link=link) as it:
        call = it.relay.call(CAP).body(b"x")
        assert await call.succeeded() == b"x"
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert it.state() == "running"
        assert len(call.terminals) == 1
        assert it.relay.loose == []
        drops, stragglers = it.protocol["drops"], it.protocol["stragglers"]["by_frame_type"]
        if misdeed == "AnswersTwice":
            assert (drops["total"], stragglers["end"]) == (0, 1)
        else:
            assert drops["by_reason_frame_type"] == {"no_route": {"end": 1}}
            assert "end" not in stragglers


@LINKS
async def test_chunk_after_stream_end_is_for_the_receiver_to_judge(link: str) -> None:
    """H19."""
    async with bench(record("ChunkAfterStreamEnd"), link=link) as it:
        call = it.relay.call(CAP).body(b"x")
        await call.succeeded()
        assert [view.type.name for view in call.frames if view.type is not FrameType.CREDIT] == [
            "STREAM_START",
            "STREAM_END",
            "CHUNK",
            "END",
        ]


@LINKS
async def test_receiver_with_a_smaller_window_gets_what_it_granted(link: str) -> None:
    """H21: the requester knows a window of 32, the cartridge agreed on 2 and exits if it gets a third CHUNK."""
    async with bench(record("SmallWindow"), link=link) as it:
        pieces = [b"%d," % index for index in range(30)]
        assert await it.relay.call(CAP).body(*pieces).succeeded() == b"".join(pieces)
        assert it.cartridge()["restarts"] == 0


@LINKS
async def test_frame_over_the_receivers_max_frame_ends_its_request_only(link: str) -> None:
    """H22."""
    async with bench(record("SmallWindow"), link=link) as it:
        call = it.relay.call(CAP)
        call.start()
        call.chunk(bytes(20_000))
        assert "over the max_frame of 16384" in await call.failed("PROTOCOL_VIOLATION")
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert it.cartridge()["restarts"] == 0


@LINKS
async def test_request_over_the_receivers_max_frame_is_refused(link: str) -> None:
    """H22."""
    async with bench(record("SmallWindow"), link=link) as it:
        await it.relay.call(GOOD).body(b"y").succeeded()
        call = it.relay.call(f"{GOOD};{'?'.join(['x' * 20_000])}=?")
        assert "REQ of" in await call.failed("PROTOCOL_VIOLATION")


@LINKS
async def test_nonsense_of_the_relay_ends_the_link_and_not_the_host(link: str) -> None:
    """H23, H41."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.cartridge()["active"] == 1)
        it.relay.send(hello_frame(DEFAULT_LIMITS))
        await it.relay.until(lambda: it.relay.closed_reason)
        assert not call.terminals
        await it.relay.until(lambda: it.state() == "dead")  # it ignored the CANCEL that followed


@LINKS
async def test_second_req_of_a_live_key_is_dropped_and_counted(link: str) -> None:
    """H13."""
    async with bench(record(), link=link) as it:
        call = it.relay.call(CAP)
        again = Frame(FrameType.REQ, call.rid, cap=GOOD, content_type="application/cbor", payload=b"")
        again.routing_id = call.xid
        it.relay.send(again)
        assert await call.body(b"x").succeeded() == b"x"
        assert it.protocol["drops"]["by_reason_frame_type"] == {"protocol_violation": {"req": 1}}
        assert len(call.terminals) == 1


async def test_frames_of_the_relay_that_find_nothing_are_counted() -> None:
    """H19."""
    async with bench(record()) as it:
        stranger = b"s" * 16
        it.relay.send(
            log_frame(stranger, LogRecord("progress", "x", 0.1), xid=5), cancel_frame(stranger, CancelReason(), xid=5)
        )
        assert it.protocol["drops"]["by_reason_frame_type"] == {"no_route": {"log": 1, "cancel": 1}}
        call = it.relay.call(CAP).body(b"x")
        await call.succeeded()
        call.cancel()
        assert it.protocol["stragglers"]["by_frame_type"]["cancel"] == 1
