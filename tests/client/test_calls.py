"""Calls and what they give: events, batches, credit, errors, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from capdag.client import Argument, Call, Client, Ended, Logged, StreamEnded, StreamStarted, Value
from capdag.errors import AttributionClass, RequestFailedError
from capdag.relay import SwitchSettings, open_switch
from capdag.wire import (
    DEFAULT_LIMITS,
    REQUEST,
    CancelReason,
    Frame,
    FrameType,
    LogRecord,
    SendWindow,
    credit_frame,
    encode_value,
    item_payloads,
)
from tests.relay.masters import ECHO, UPPER, Answer, LinkKind, Master, ready, until

HELLO = [Argument("media:octets", b"hello")]


async def serve_echo(master: Master, window: int = 32) -> None:
    """Answer requests one after another with their argument, under credit, as a real cartridge does."""
    while True:
        req = await master.skip_to(FrameType.REQ)
        answer, credit, held, whole = Answer(req.id, req.xid), SendWindow(window), list[bytes](), False
        master.send(answer.start())
        while held or not whole:
            view = await master.next()
            whole = whole or view.type is FrameType.END
            if view.type is FrameType.CHUNK:
                held.append(view.fields[6])
            elif view.type is FrameType.CREDIT:
                credit.grant(view.fields[19])
            while held and credit.take():
                grant = credit_frame(req.id, "arg-0", 1, REQUEST, xid=req.xid)
                master.send(answer.chunk(held.pop(0)), grant)
        master.send(answer.stream_end(), answer.end())


async def begin(master: Master) -> Answer:
    """Take a REQ and return a builder of its answer."""
    req = await master.skip_to(FrameType.REQ)
    return Answer(req.id, req.xid)


async def read(call: Call) -> list[object]:
    return [event for batch in [batch async for batch in call.batches()] for event in batch]


async def failure_of_call(call: Call) -> RequestFailedError:
    with pytest.raises(RequestFailedError) as caught:
        await read(call)
    return caught.value


# Answers


async def test_events_of_a_scalar_answer(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO, HELLO) as call:
            answer = await begin(master)
            master.send(answer.start(meta={"n": 1}), answer.progress(0.5), answer.chunk(encode_value("wor")))
            master.send(answer.log(level="info", message="almost", attribution_class="internal", tokens=3))
            master.send(answer.chunk(encode_value("ld"), meta={"last": True}), answer.stream_end(), answer.end())
            events = await read(call)
        started = events[0]
        assert isinstance(started, StreamStarted)
        head = started.stream
        assert tuple(head) == ("out-0", "media:octets", False, False, None, {"n": 1})
        assert events[1:] == [
            Logged(LogRecord("progress", "working", 0.5)),
            Value(head, "wor", {}),
            Logged(LogRecord("info", "almost", None, AttributionClass.INTERNAL, {"tokens": 3})),
            Value(head, "ld", {"last": True}),
            StreamEnded(head),
            Ended({"exit_code": 0, "progress": 1.0}),
        ]


async def test_everything_that_is_ready_is_one_batch(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        for frame in (answer.start(), *answer.chunks(5)):
            master.send(frame)
        await until(lambda: bool(switch.snapshot()["requests"]["active"][0]["streams"][0]["chunks_in"] == 5))
        batches = call.batches()
        assert len(await anext(batches)) == 6
        master.send(answer.stream_end(), answer.end())
        assert [type(event) for event in await anext(batches)] == [StreamEnded, Ended]
        assert await anext(batches, None) is None
        assert await anext(batches, None) is None


async def test_items_of_a_sequence(kind: LinkKind, clock: MockClock | None) -> None:
    items = [{"text": "a" * 5000}, {"text": "b"}, list(range(3000))]
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO) as call:
            answer = await begin(master)
            master.send(answer.start(is_sequence=True))
            for index, item in enumerate(items):
                for at, payload in enumerate(item_payloads(item, 1000)):
                    master.send(answer.chunk(payload, **({"meta": {"index": index}} if at == 0 else {})))
            master.send(answer.stream_end(), answer.end())
            values = [event for event in await read(call) if isinstance(event, Value)]
        assert [value.value for value in values] == items
        assert [value.meta for value in values] == [{"index": 0}, {"index": 1}, {"index": 2}]


async def test_several_outputs_and_a_collected_answer(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:

        async def serve() -> None:
            answer = await begin(master)
            other = Answer(answer.rid, answer.xid, "out-1")
            master.send(other.start(output="media:log"), answer.start(), answer.progress(0.1))
            master.send(answer.chunk(encode_value(b"ab")), other.chunk(encode_value("x")), answer.chunk(b"\x41c"))
            master.send(other.chunk(b"\x01", meta={"n": 2}), other.stream_end(), answer.stream_end(), answer.end())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            answer = await Client(switch).collect(ECHO)
        assert answer.value == b"abc"
        assert [stream.joined() for stream in answer.streams] == [["x", 1], b"abc"]
        assert answer.streams[0].metas == [{}, {"n": 2}]
        assert answer.logs == [LogRecord("progress", "working", 0.1)]
        assert answer.meta == {"exit_code": 0, "progress": 1.0}


async def test_an_answer_that_is_gathered_is_bounded(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:

        async def serve() -> None:
            for _ in range(2):
                answer = await begin(master)
                master.send(answer.start(), *(answer.chunk(encode_value(b"x" * 1000)) for _ in range(20)))
                await wait_all_tasks_blocked(0.01)
                master.send(answer.stream_end(), answer.end())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            whole = await Client(switch).collect(ECHO, answer_limit=100_000)
            assert len(whole.value) == 20_000
            with pytest.raises(RequestFailedError, match=r"the answer is over 10,000 bytes: .* raise answer_limit"):
                await Client(switch).collect(ECHO, answer_limit=10_000)
        assert (await master.skip_to(FrameType.CANCEL)).meta["code"] == "ANSWER_TOO_LARGE"


async def test_an_answer_without_streams(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO) as call:
            master.send((await begin(master)).end())
            assert await read(call) == [Ended({"exit_code": 0, "progress": 1.0})]
        assert Client(switch).capabilities() == switch.capabilities()


# Errors


async def test_what_came_before_an_error_is_given_first(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(answer.start(), answer.chunk(b"\x41a"), answer.err("OOM_KILLED", "resource", "too big"))
        batches = call.batches()
        assert len(await anext(batches)) == 2
        for _ in range(2):
            with pytest.raises(RequestFailedError, match="too big") as caught:
                await anext(batches)
            assert (caught.value.code, caught.value.attribution) == ("OOM_KILLED", AttributionClass.RESOURCE)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"exit_code": 3, "message": "bad luck"}, "bad luck"),
        ({"exit_code": 3}, "exit_code 3"),
        ({"exit_code": False}, "exit_code False"),
        ({"exit_code": "0"}, "exit_code '0'"),
        ({}, "no exit_code"),
    ],
)
async def test_an_end_that_is_no_success(
    kind: LinkKind, clock: MockClock | None, meta: dict[str, object], said: str
) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO) as call:
            answer = await begin(master)
            master.send(Frame(FrameType.END, answer.rid, routing_id=answer.xid, meta=meta))
            error = await failure_of_call(call)
        assert (error.code, error.attribution) == ("HANDLER_ERROR", AttributionClass.INTERNAL)
        assert said in error.message


async def test_a_malformed_error_still_ends_the_call(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(Frame(FrameType.ERR, answer.rid, routing_id=answer.xid, meta={"code": "X"}))
        assert (await failure_of_call(call)).code == "PROTOCOL_VIOLATION"


BROKEN: dict[str, Callable[[Answer], list[Frame]]] = {
    "has a wrong checksum": lambda answer: [answer.start(), answer.chunk(b"\x41a", checksum=1)],
    "which was never started": lambda answer: answer.chunks(1),
    "CHUNK 7 came where 0 was due": lambda answer: [answer.start(), answer.chunk(b"\x41a", chunk_index=7)],
    "not one strict CBOR item": lambda answer: [answer.start(), answer.chunk(b"\x5f\xff")],
    "a second STREAM_START": lambda answer: [answer.start(), answer.start()],
    "after STREAM_END": lambda answer: [answer.start(), answer.stream_end(), answer.chunk(b"\x41a")],
    "ended with chunk_count 0": lambda answer: [answer.start(), wrong_count(answer), answer.stream_end()],
    "needs stream_id and media_urn": lambda answer: [answer.start(media_urn=None)],
    "END while stream 'out-0' is open": lambda answer: [answer.start(), answer.end()],
    "inside an item": lambda answer: [answer.start(is_sequence=True), answer.chunk(b"\x42a"), answer.stream_end()],
}


def wrong_count(answer: Answer) -> Frame:
    """A CHUNK that the STREAM_END after it does not count."""
    chunk = answer.chunk(b"\x41a")
    answer.index = 0
    return chunk


@pytest.mark.parametrize("rule", list(BROKEN))
async def test_an_answer_that_breaks_a_rule(kind: LinkKind, clock: MockClock | None, rule: str) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO) as call:
            answer = await begin(master)
            master.send(*BROKEN[rule](answer))
            error = await failure_of_call(call)
            assert (error.code, error.attribution) == ("PROTOCOL_VIOLATION", AttributionClass.INTERNAL)
            assert rule in error.message
            if not rule.startswith("END"):
                assert (await master.skip_to(FrameType.CANCEL)).meta["code"] == "PROTOCOL_VIOLATION"
                master.send(answer.err())
        await until(lambda: not switch.snapshot()["requests"]["active"])


async def test_a_handler_past_its_window(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(answer.start(), *answer.chunks(33))
        error = await failure_of_call(call)
        assert error.code == "CREDIT_VIOLATION"
        assert (await master.skip_to(FrameType.CANCEL)).meta["code"] == "CREDIT_VIOLATION"


async def test_nobody_serves_it(autojump_clock: MockClock) -> None:
    async with open_switch() as switch:
        with pytest.raises(RequestFailedError, match="NO_HANDLER"):
            await Client(switch).collect(ECHO)


async def test_an_answer_that_comes_while_the_request_is_being_sent(autojump_clock: MockClock) -> None:
    """In one process a host may refuse a REQ before `open_request` has returned."""

    class Refusing(Master):
        def deliver(self, batch: object) -> None:
            super().deliver(batch)  # type: ignore[arg-type]
            for view in self.seen:
                if view.type is FrameType.REQ and view.xid == 1:
                    answer = Answer(view.id, 1)
                    self.send(answer.start(), answer.chunk(b"\x41a"), answer.err("SPAWN_FAILED", "environment", "no"))

    async with (
        open_switch() as switch,
        ready(switch, "m0", "local", ECHO) as master,
    ):
        master.__class__ = Refusing
        async with Client(switch).call(ECHO, HELLO) as call:
            batches = call.batches()
            assert [type(event) for event in await anext(batches)] == [StreamStarted, Value]
            with pytest.raises(RequestFailedError, match="SPAWN_FAILED"):
                await anext(batches)


# Credit


async def test_credit_is_granted_as_batches_are_used(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(answer.start(), *answer.chunks(16))
        batches = call.batches()
        got = 0
        while got < 17:
            got += len(await anext(batches))
        await wait_all_tasks_blocked()
        assert [view.type for view in master.untaken() if view.type is FrameType.CREDIT] == []
        master.send(*answer.chunks(1))
        await anext(batches)
        grant = await master.skip_to(FrameType.CREDIT)
        assert (grant.fields[19], grant.stream_id, grant.meta) == (16, "out-0", {"credit_dir": "response"})


@pytest.mark.parametrize("window", [1, 2])
async def test_an_item_longer_than_the_window_comes_whole(kind: LinkKind, clock: MockClock | None, window: int) -> None:
    small = DEFAULT_LIMITS._replace(initial_credit=window)
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO, limits=small) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer, credit = await begin(master), SendWindow(window)
        master.send(answer.start(is_sequence=True))

        async def serve() -> None:
            for payload in item_payloads(b"x" * 100, 10):
                while not credit.take():
                    credit.grant((await master.skip_to(FrameType.CREDIT)).fields[19])
                master.send(answer.chunk(payload))
            master.send(answer.stream_end(), answer.end())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            events = await read(call)
        assert [event.value for event in events if isinstance(event, Value)] == [b"x" * 100]


@pytest.mark.parametrize(("sender", "receiver"), [(16, 64), (64, 32), (1, 64), (32, 32), (7, 3)])
async def test_unequal_windows_do_not_starve_each_other(
    kind: LinkKind, clock: MockClock | None, sender: int, receiver: int
) -> None:
    """The cartridge's own window is not the one its host has told of: the answer still comes whole, both ways."""
    limits = DEFAULT_LIMITS._replace(initial_credit=receiver, max_chunk=100)
    data = bytes(range(256)) * (20 if sender > 1 else 2)
    async with (
        open_switch(SwitchSettings(limits=DEFAULT_LIMITS._replace(initial_credit=64))) as switch,
        ready(switch, "m0", kind, ECHO, limits=limits) as master,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve_echo, master, sender)
        with trio.fail_after(30):
            answer = await Client(switch).collect(ECHO, [Argument("media:octets", data)])
        assert answer.value == data
        nursery.cancel_scope.cancel()


async def test_a_reader_that_comes_late_still_grants(kind: LinkKind, clock: MockClock | None) -> None:
    """What a handler with a small window has sent lay there for long: used at last, it is granted."""
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
        trio.open_nursery() as nursery,
    ):
        answer = await begin(master)
        master.send(answer.start(), *answer.chunks(4))
        await trio.sleep(0.1)
        batches = call.batches()
        assert len(await anext(batches)) == 5
        nursery.start_soon(anext, batches)
        assert (await master.skip_to(FrameType.CREDIT)).fields[19] == 4
        nursery.cancel_scope.cancel()


async def test_nothing_is_granted_to_a_stream_that_has_ended(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        await master.skip_to(FrameType.END)
        master.send(answer.start(), *answer.chunks(20), answer.stream_end())
        batches = call.batches()
        got = 0
        while got < 22:
            got += len(await anext(batches))
        with trio.move_on_after(0.1):
            await anext(batches)
        assert master.untaken() == []


async def test_chatter_does_not_keep_a_stuck_sender_waiting(kind: LinkKind, clock: MockClock | None) -> None:
    """The handler's window is far under ours, and while it waits for credit it reports progress all the time."""
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
        trio.open_nursery() as nursery,
    ):
        answer = await begin(master)
        other = Answer(answer.rid, answer.xid, "busy")

        async def chatter() -> None:
            while True:
                master.send(answer.progress(0.5), *other.chunks(1))
                await trio.sleep(0.01)

        async def consume() -> None:
            async for _ in call.batches():
                pass

        master.send(answer.start(), other.start(output="media:busy"), *answer.chunks(4))
        nursery.start_soon(chatter)
        nursery.start_soon(consume)
        while (grant := await master.skip_to(FrameType.CREDIT)).stream_id != "out-0":
            pass
        assert grant.fields[19] == 4
        nursery.cancel_scope.cancel()


async def test_a_caller_that_does_not_read_holds_the_handler(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(answer.start(), *answer.chunks(32))
        await until(lambda: switch.snapshot()["requests"]["active"][0]["streams"][0]["chunks_in"] == 32)
        await trio.sleep(0.1)
        assert FrameType.CREDIT not in [view.type for view in master.untaken()]
        async for batch in call.batches():
            if len(batch) == 33:
                break


# Logs


async def test_a_flood_of_logs_is_bounded(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO) as call:
            answer = await begin(master)
            master.send(answer.start(), answer.chunk(b"\x41a"))
            for index in range(3000):
                master.send(
                    answer.progress(index / 3000, f"step {index} " + "." * 200),
                    answer.log(level="info", message=f"line {index} " + "." * 200, attribution_class="internal"),
                )
            master.send(answer.stream_end(), answer.end())
            await until(lambda: not switch.snapshot()["requests"]["active"])
            (events,) = [batch async for batch in call.batches()]
        logs = [event.record for event in events if isinstance(event, Logged)]
        assert sum(len(record.message) for record in logs) < 256 * 1024
        lines = [record.message.split()[1] for record in logs if record.level == "info"]
        assert lines == [str(index) for index in range(3000 - len(lines), 3000)]
        assert call.dropped_logs == 3000 - len(lines) > 1000
        progress = [record.message.split()[1] for record in logs if record.level == "progress"]
        assert progress[-1] == "2999"
        assert [type(event) for event in events if not isinstance(event, Logged)] == [
            StreamStarted,
            Value,
            StreamEnded,
            Ended,
        ]


async def test_a_malformed_log_is_dropped_and_counted(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(answer.log(level="info", message="whose fault?"), answer.log(), answer.end())
        assert await read(call) == [Ended({"exit_code": 0, "progress": 1.0})]
        assert call.dropped_logs == 2


async def test_stream_starts_that_fill_the_queue(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        master.send(answer.progress(0.5))
        for index in range(5):
            stream = Answer(answer.rid, answer.xid, f"s{index}")
            master.send(stream.start(meta={"padding": "x" * 60_000}))
        assert (await master.skip_to(FrameType.CANCEL)).meta["code"] == "PROTOCOL_VIOLATION"
        assert (await failure_of_call(call)).code == "PROTOCOL_VIOLATION"


# Arguments


async def test_bytes_are_cut_to_chunks_and_sent_under_credit(kind: LinkKind, clock: MockClock | None) -> None:
    limits = DEFAULT_LIMITS._replace(max_chunk=100, initial_credit=4)
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO, limits=limits) as master,
        Client(switch).call(ECHO, [Argument("media:octets", b"x" * 1050)]) as call,
    ):
        req = await master.next(FrameType.REQ)
        start = await master.next(FrameType.STREAM_START)
        assert (start.stream_id, start.fields[12], start.fields[17]) == ("arg-0", "media:octets", False)
        for expected in (4, 4, 2, 1):
            chunks = [await master.next(FrameType.CHUNK) for _ in range(expected)]
            await wait_all_tasks_blocked()
            if expected > 2:
                assert master.untaken() == []
                master.send(credit_frame(req.id, "arg-0", 4 if expected == 4 else 1, REQUEST, xid=req.xid))
        assert chunks[-1].fields[14] == 10
        end = await master.next(FrameType.STREAM_END)
        assert end.fields[15] == 11
        assert (await master.next(FrameType.END)).meta == {}
        assert [view.seq for view in master.seen if view.id == req.id] == list(range(15))
        assert sum(view.payload_size for view in master.seen if view.id == req.id) == 1050 + 11 * 2
        master.send(Answer(req.id, req.xid).end())
        await read(call)


async def test_large_bytes_both_ways(kind: LinkKind, clock: MockClock | None) -> None:
    data = bytes(range(256)) * 20_000
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve_echo, master)
        assert (await Client(switch).collect(ECHO, [Argument("media:octets", data)])).value == data
        assert (await Client(switch).collect(ECHO, [Argument("media:octets", b"")])).value == []
        nursery.cancel_scope.cancel()


async def test_bytes_that_come_as_they_come(kind: LinkKind, clock: MockClock | None) -> None:
    closed = trio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for piece in (b"one", b"", b"two" * 100, b"three"):
                await trio.sleep(0.01)
                yield piece
        finally:
            closed.set()

    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve_echo, master)
        answer = await Client(switch).collect(ECHO, [Argument("media:octets", pieces())])
        assert answer.value == b"one" + b"two" * 100 + b"three"
        assert closed.is_set()
        nursery.cancel_scope.cancel()


async def test_a_sequence_argument(kind: LinkKind, clock: MockClock | None) -> None:
    class Items:
        def __init__(self) -> None:
            self.left = [{"n": 1}, b"x" * 250, "three"]

        def __aiter__(self) -> Items:
            return self

        async def __anext__(self) -> object:
            await trio.lowlevel.checkpoint()
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    limits = DEFAULT_LIMITS._replace(max_chunk=100)
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO, limits=limits) as master:
        arguments = [Argument("media:list", Items(), is_sequence=True), Argument("media:one", b"y", is_sequence=True)]
        async with Client(switch).call(ECHO, arguments) as call:
            received = await master.take_request()
            ours = [view for view in master.seen if view.stream_id == "arg-0" and view.type is FrameType.CHUNK]
            expected = [p for item in ({"n": 1}, b"x" * 250, "three") for p in item_payloads(item, 100)]
            assert [view.fields[6] for view in ours] == expected
            starts = [view for view in master.seen if view.type is FrameType.STREAM_START and view.xid == 1]
            assert [view.fields[17] for view in starts] == [True, True]
            assert b"\x41y" in received.payload
            master.send(received.answer.end())
            await read(call)


async def test_a_handler_that_reads_the_last_argument_first(kind: LinkKind, clock: MockClock | None) -> None:
    limits = DEFAULT_LIMITS._replace(max_chunk=10, initial_credit=2)
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO, limits=limits) as master:

        def long_ones() -> int:
            return sum(view.stream_id == "arg-0" and view.type is FrameType.CHUNK for view in master.seen)

        arguments = [Argument("media:long", b"a" * 100), Argument("media:short", b"b" * 15)]
        async with Client(switch).call(ECHO, arguments) as call:
            answer = await begin(master)
            assert (await master.skip_to(FrameType.STREAM_END)).stream_id == "arg-1"
            # A grant without a stream id is meant for the only argument still open.
            grant = Frame(FrameType.CREDIT, answer.rid, routing_id=answer.xid, credit=2, meta={"credit_dir": "request"})
            for sent in (2, 4, 6, 8):
                await until(lambda sent=sent: long_ones() == sent)  # type: ignore[misc]
                master.send(grant)
            await master.skip_to(FrameType.END)
            master.send(answer.end())
            await read(call)


async def test_chunks_fit_a_host_whose_chunks_are_as_long_as_its_frames(
    kind: LinkKind, clock: MockClock | None
) -> None:
    limits = DEFAULT_LIMITS._replace(max_frame=1000, max_chunk=1000)
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO, limits=limits) as master,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(serve_echo, master)
        answer = await Client(switch).collect(ECHO, [Argument("media:octets", b"x" * 20_000)])
        assert answer.value == b"x" * 20_000
        assert max(len(view.body) for view in master.seen) <= 1000
        nursery.cancel_scope.cancel()


async def test_an_answer_that_ends_before_the_body_stops_the_sender(kind: LinkKind, clock: MockClock | None) -> None:
    closed = trio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 1000
        finally:
            closed.set()

    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO, [Argument("media:octets", endless())]) as call:
            answer = await begin(master)
            await master.skip_to(FrameType.CHUNK)
            master.send(answer.end())
            assert await read(call) == [Ended({"exit_code": 0, "progress": 1.0})]
            with trio.fail_after(5):
                await closed.wait()
        assert FrameType.CANCEL not in [view.type for view in master.untaken()]


async def test_an_argument_that_raises_ends_the_block_with_its_error(kind: LinkKind, clock: MockClock | None) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ValueError("the file went away")

    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        with pytest.raises(ValueError, match="the file went away"):
            await Client(switch).collect(ECHO, [Argument("media:octets", broken())])
        await master.skip_to(FrameType.CANCEL)
        await master.skip_to(FrameType.ERR)


# Leaving


async def test_leaving_cancels(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO, HELLO) as call:
            answer = await begin(master)
            await master.skip_to(FrameType.END)
            master.send(answer.start(), *answer.chunks(20))
            async for _ in call.batches():
                break
        cancel = await master.skip_to(FrameType.CANCEL)
        assert (cancel.meta["code"], cancel.meta["attribution_class"]) == ("CANCELLED", "user")
        assert len(switch.snapshot()["requests"]["active"]) == 1
        master.send(*answer.chunks(200), answer.err("CANCELLED", "user"))
        await until(lambda: not switch.snapshot()["requests"]["active"])
        with pytest.raises(RequestFailedError, match="CANCELLED"):
            await read(call)


async def test_cancelling_around_a_call_cancels_it_at_once(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        with trio.move_on_after(0.05) as scope:
            await Client(switch).collect(ECHO, HELLO)
        assert scope.cancelled_caught
        await master.skip_to(FrameType.CANCEL)


async def test_a_failing_block_cancels_and_keeps_its_error(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:

        async def fail() -> None:
            async with Client(switch).call(ECHO, HELLO):
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fail()
        await master.skip_to(FrameType.CANCEL)


async def test_cancelling_for_a_reason(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO, HELLO) as call:
            await begin(master)
            call.cancel(CancelReason("DEADLINE_EXCEEDED", AttributionClass.RESOURCE, "no answer in 5 s"))
            assert (await failure_of_call(call)).code == "DEADLINE_EXCEEDED"
        assert (await master.skip_to(FrameType.CANCEL)).meta["code"] == "DEADLINE_EXCEEDED"
        assert FrameType.CANCEL not in [view.type for view in master.untaken()]


async def test_leaving_after_the_end_sends_nothing(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO) as call:
            answer = await begin(master)
            await master.skip_to(FrameType.END)
            master.send(answer.start(), answer.stream_end(), answer.end())
            async for _ in call.batches():
                pass
        assert master.untaken() == []


async def test_reading_can_be_interrupted_and_taken_up_again(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
    ):
        answer = await begin(master)
        batches = call.batches()
        for _ in range(3):
            with trio.move_on_after(0.02) as scope:
                await anext(batches)
            assert scope.cancelled_caught
        master.send(answer.start(), answer.stream_end(), answer.end())
        assert [type(event) for event in await read(call)] == [StreamStarted, StreamEnded, Ended]


async def test_what_comes_at_the_moment_of_the_flush_is_kept(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "m0", kind, ECHO) as master,
        Client(switch).call(ECHO) as call,
        trio.open_nursery() as nursery,
    ):
        answer = await begin(master)
        master.send(answer.start(), *answer.chunks(3))

        async def finish() -> None:
            await trio.sleep(0.05)
            master.send(*answer.chunks(2), answer.stream_end(), answer.end())

        batches = call.batches()
        values = sum(isinstance(event, Value) for event in await anext(batches))
        while values < 3:
            values += len(await anext(batches))
        nursery.start_soon(finish)
        rest = [event async for batch in batches for event in batch]
        assert [type(event) for event in rest] == [Value, Value, StreamEnded, Ended]


async def test_a_host_that_dies(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        async with Client(switch).call(ECHO, HELLO) as call:
            await begin(master)
            master.link.close()
            error = await failure_of_call(call)
        assert (error.code, error.attribution) == ("MASTER_DIED", AttributionClass.ENVIRONMENT)


async def test_many_calls_at_once(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, UPPER) as master:
        answers: list[bytes] = []

        async def one(index: int) -> None:
            answers.append((await Client(switch).collect(UPPER, [Argument("media:", b"%d" % index)])).value)

        async def serve() -> None:
            waiting: dict[object, Answer] = {}
            for _ in range(100):
                while (view := await master.next()).type is not FrameType.END:
                    if view.type is FrameType.CHUNK:
                        answer = waiting[view.id] = Answer(view.id, view.xid)
                        master.send(answer.start(media_urn="media:enc=utf-8"), answer.chunk(view.fields[6]))
                ended = waiting.pop(view.id)
                master.send(ended.stream_end(), ended.end())

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                for index in range(100):
                    nursery.start_soon(one, index)
        assert sorted(answers) == sorted(b"%d" % index for index in range(100))
