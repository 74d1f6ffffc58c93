"""Windows that differ along the path: what the switch holds, and when it lets go."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from capdag.relay import SwitchSettings, open_switch
from capdag.wire import DEFAULT_LIMITS, REQUEST, RESPONSE, Frame, FrameType, credit_frame, encode_value, fnv1a_64
from tests.relay.masters import ECHO, UPPER, Answer, Caller, LinkKind, Master, peer_call, ready, until

PEER = b"peer call id 16b"
WIDE = DEFAULT_LIMITS._replace(initial_credit=64)
SETTINGS = SwitchSettings(limits=WIDE)


def names(master: Master) -> list[str]:
    return [view.type.name for view in master.untaken()]


def outstanding(switch: object, stream_id: str) -> int:
    (row,) = switch.snapshot()["requests"]["active"]  # type: ignore[attr-defined]
    (stream,) = [stream for stream in row["streams"] if stream["stream_id"] == stream_id]
    return int(stream["credit_outstanding"])


async def test_an_answer_is_held_to_the_window_of_its_receiver(kind: LinkKind, clock: MockClock | None) -> None:
    """S15: Sender 64, receiver 32."""
    async with (
        open_switch(SETTINGS) as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO, limits=WIDE) as b,
    ):
        a.send(*peer_call(PEER))
        answer = (await b.take_request()).answer
        b.send(answer.start(), *answer.chunks(64), answer.progress(1.0), answer.stream_end(), answer.end())
        await until(lambda: len(a.untaken()) == 34)
        # What needs no credit does not wait: the LOG has passed the CHUNKs.
        assert names(a) == ["STREAM_START", *["CHUNK"] * 32, "LOG"]
        assert outstanding(switch, "out-0") == -32
        # The END has come and waits: nothing comes after it.
        b.send(answer.progress(1.0), answer.end(), answer.err())
        await until(lambda: switch.snapshot()["stragglers"]["total"] == 3)
        assert switch.snapshot()["drops"]["total"] == 0
        for granted, expected in ((16, 16), (15, 15), (1, 1)):
            had = len(a.untaken())
            a.send(credit_frame(PEER, "out-0", granted, RESPONSE))
            await until(lambda had=had, expected=expected: len(a.untaken()) >= had + expected)  # type: ignore[misc]
            assert (await b.next(FrameType.CREDIT)).fields[19] == granted
        assert names(a)[-3:] == ["CHUNK", "STREAM_END", "END"]
        assert [view.fields[14] for view in a.untaken() if view.type is FrameType.CHUNK] == list(range(64))
        assert switch.snapshot()["requests"]["active"] == []


async def test_a_body_is_held_to_the_window_of_its_receiver(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch(SETTINGS) as switch,
        ready(switch, "a", kind, UPPER, limits=WIDE) as a,
        ready(switch, "b", kind, ECHO) as b,
    ):
        a.send(*peer_call(PEER, *([b"\x40"] * 40)))
        await until(lambda: len(b.untaken()) == 34)
        assert names(b) == ["REQ", "STREAM_START", *["CHUNK"] * 32]
        b.send(credit_frame(PEER, "arg-0", 16, REQUEST, xid=1))
        await until(lambda: len(b.untaken()) == 44)
        assert names(b)[34:] == [*["CHUNK"] * 8, "STREAM_END", "END"]
        assert [view.seq for view in b.untaken()] == list(range(44))
        assert (await a.next(FrameType.CREDIT)).fields[19] == 16


async def test_streams_wait_each_for_their_own_credit(kind: LinkKind, clock: MockClock | None) -> None:
    """S15: A receiver may read the second stream first: it must not wait for the first one's credit."""
    async with (
        open_switch(SETTINGS) as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO, limits=WIDE) as b,
    ):
        a.send(*peer_call(PEER))
        await b.take_request()
        first, second = Answer(PEER, 1, "one"), Answer(PEER, 1, "two")
        b.send(first.start(), *first.chunks(40), first.stream_end())
        b.send(second.start(), *second.chunks(3), second.stream_end(), second.end())
        await until(lambda: len(a.untaken()) == 38)
        assert [view.stream_id for view in a.untaken()[-5:]] == ["two"] * 5
        a.send(credit_frame(PEER, "two", 3, RESPONSE), credit_frame(PEER, "one", 32, RESPONSE))
        await until(lambda: len(a.untaken()) == 48)
        assert names(a)[-3:] == ["CHUNK", "STREAM_END", "END"]


async def test_a_grant_without_stream_is_for_the_only_open_one(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch(SETTINGS) as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO, limits=WIDE) as b,
    ):
        a.send(*peer_call(PEER))
        answer = (await b.take_request()).answer
        b.send(answer.start(), *answer.chunks(33))
        await until(lambda: len(a.untaken()) == 33)
        a.send(Frame(FrameType.CREDIT, PEER, credit=1, meta={"credit_dir": "response"}))
        await until(lambda: len(a.untaken()) == 34)
        other = Answer(PEER, 1, "two")
        b.send(other.start(), *answer.chunks(1))
        await until(lambda: len(a.untaken()) == 35)
        a.send(Frame(FrameType.CREDIT, PEER, credit=1, meta={"credit_dir": "response"}))
        await b.next(FrameType.CREDIT)
        await b.next(FrameType.CREDIT)
        assert len(a.untaken()) == 35


async def test_a_grant_lifts_nothing_above_the_window(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        answer = Answer(request.rid, request.xid)
        master.send(answer.start(), *answer.chunks(10))
        await caller.until(11)
        request.send([credit_frame(request.rid, "out-0", 1_000_000, RESPONSE)])
        assert outstanding(switch, "out-0") == 32
        master.send(*answer.chunks(33))
        terminal = await caller.terminal()
        assert terminal.meta["code"] == "CREDIT_VIOLATION"


@pytest.mark.parametrize("window", [4, 32])
async def test_a_handler_past_its_window_loses_its_request(
    kind: LinkKind, clock: MockClock | None, window: int
) -> None:
    """A notice says the least of a host's windows: the switch takes what it might have offered itself."""
    limits = DEFAULT_LIMITS._replace(initial_credit=window)
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO, limits=limits) as master:
        caller, neighbour = Caller(), Caller()
        request, other = switch.open_request(ECHO, caller), switch.open_request(ECHO, neighbour)
        await master.next(FrameType.REQ)
        await master.next(FrameType.REQ)
        answer = Answer(request.rid, request.xid)
        master.send(answer.start(), *answer.chunks(33))
        terminal = await caller.terminal()
        assert (terminal.meta["code"], terminal.seq) == ("CREDIT_VIOLATION", 34)
        assert caller.types.count(FrameType.CHUNK) == window
        assert (await master.next(FrameType.CANCEL)).meta["code"] == "CREDIT_VIOLATION"
        master.send(answer.err(), Answer(other.rid, other.xid).end())
        assert (await neighbour.terminal()).type is FrameType.END
        assert switch.snapshot()["requests"]["active"] == []


async def test_a_caller_past_its_window_loses_its_request(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        payload = encode_value(b"x")
        request.send([Frame(FrameType.STREAM_START, request.rid, stream_id="s", media_urn="media:")])
        request.send(
            [
                Frame(
                    FrameType.CHUNK,
                    request.rid,
                    stream_id="s",
                    payload=payload,
                    chunk_index=index,
                    checksum=fnv1a_64(payload),
                )
                for index in range(33)
            ]
        )
        assert (await caller.terminal()).meta["code"] == "CREDIT_VIOLATION"
        came = [await master.next() for _ in range(36)]
        assert [view.type.name for view in came[-2:]] == ["CANCEL", "ERR"]


async def test_chunks_of_a_stream_never_started_are_for_the_ends_to_judge(
    kind: LinkKind, clock: MockClock | None
) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        answer = Answer(request.rid, request.xid)
        master.send(*answer.chunks(100), answer.stream_end(), answer.end())
        await caller.terminal()
        assert caller.types.count(FrameType.CHUNK) == 100
