"""Requests of callers."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from capdag.errors import AttributionClass, LocalProtocolError, RequestFailedError
from capdag.relay import SwitchSettings, open_switch
from capdag.relay._passage import ROUTES
from capdag.relay._router import FROM_MASTER
from capdag.wire import (
    DEFAULT_LIMITS,
    Frame,
    FrameType,
    body_end_frame,
    cancel_frame,
    err_frame,
    failure_of,
)
from capdag.wire.life import Verdict
from capdag.wire.link_life import LINK_LIFE, Direction
from capdag.wire.meta import HOST_ABORT, Failure
from capdag.wire.request_life import REQUEST_LIFE, RequestState, Side
from tests.relay.masters import ECHO, UPPER, Answer, Caller, LinkKind, body, ready, until

SMALL = DEFAULT_LIMITS._replace(max_frame=600, max_chunk=100, initial_credit=7)
HELLO = b"\x45hello"


async def test_a_request_and_its_answer(kind: LinkKind, clock: MockClock | None) -> None:
    """S14."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        request.send(body(request.rid, HELLO))
        received = await master.take_request()
        assert received.payload == HELLO
        sent = [view for view in master.seen if view.id == request.rid]
        assert [(view.type.name, view.seq, view.xid) for view in sent] == [
            ("REQ", 0, 1),
            ("STREAM_START", 1, 1),
            ("CHUNK", 2, 1),
            ("STREAM_END", 3, 1),
            ("END", 4, 1),
        ]
        assert sent[0].fields[4] == "application/cbor"
        answer = received.answer
        master.send(answer.start(), answer.chunk(HELLO), answer.stream_end(), answer.end())
        assert (await caller.terminal()).meta == {"exit_code": 0, "progress": 1.0}
        assert [kind.name for kind in caller.types] == ["CREDIT", "STREAM_START", "CHUNK", "STREAM_END", "END"]
        assert request.ended
        assert switch.snapshot()["requests"]["active"] == []


async def test_the_frames_of_one_read_are_one_delivery(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        first, second = Caller(), Caller()
        one, two = switch.open_request(ECHO, first), switch.open_request(ECHO, second)
        await master.next(FrameType.REQ)
        await master.next(FrameType.REQ)
        a, b = Answer(one.rid, one.xid), Answer(two.rid, two.xid)
        master.send(a.start(), b.start(), *a.chunks(5), *b.chunks(5), a.progress(0.5), a.stream_end(), a.end(), b.end())
        await first.terminal()
        await second.terminal()
        assert [len(batch) for batch in first.batches] == [9]
        assert [len(batch) for batch in second.batches] == [7]


async def test_an_error_keeps_code_class_and_detail(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        why = Failure("CONTEXT_LENGTH_EXCEEDED", AttributionClass.INPUT, "too long", {"limit": 2048, "seen": 9000})
        master.send(err_frame(request.rid, why, xid=request.xid))
        assert failure_of((await caller.terminal()).meta) == why


async def test_an_error_without_xid_ends_the_request(kind: LinkKind, clock: MockClock | None) -> None:
    """The public host leaves the XID out of every ERR of its own."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        master.send(err_frame(request.rid, Failure("CARTRIDGE_DIED", AttributionClass.ENVIRONMENT, "it died")))
        assert (await caller.terminal()).meta["code"] == "CARTRIDGE_DIED"
        assert master.untaken() == []


async def test_what_comes_after_the_terminal_is_a_straggler(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        answer = Answer(request.rid, request.xid)
        master.send(answer.end(), answer.start(), answer.chunk(HELLO), answer.end(), answer.err())
        master.send(Answer(77, 99).start(), Answer(request.rid, 12345).progress(0.1))
        await caller.terminal()
        await until(lambda: switch.snapshot()["stragglers"]["total"] == 5)
        snapshot = switch.snapshot()
        assert snapshot["stragglers"]["by_frame_type"] == {"stream_start": 1, "chunk": 1, "end": 1, "err": 1, "log": 1}
        assert snapshot["drops"]["by_reason_frame_type"] == {"no_route": {"stream_start": 1}}
        assert len(caller.terminals) == 1


async def test_an_xid_of_another_request_is_no_route(kind: LinkKind, clock: MockClock | None) -> None:
    """S14."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        one, two = Caller(), Caller()
        first, second = switch.open_request(ECHO, one), switch.open_request(ECHO, two)
        await master.next(FrameType.REQ)
        master.send(Answer(first.rid, second.xid).end(), Answer(second.rid, second.xid).end())
        await two.terminal()
        assert one.views == []
        assert switch.snapshot()["drops"]["by_reason_frame_type"] == {"no_route": {"end": 1}}


async def test_nothing_is_sent_after_the_end(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        master.send(Answer(request.rid, request.xid).end())
        await caller.terminal()
        request.send(body(request.rid, HELLO))
        request.cancel()
        switch.open_request(ECHO, Caller())
        assert (await master.next()).type is FrameType.REQ


async def test_limits_are_those_of_the_host(kind: LinkKind, clock: MockClock | None) -> None:
    own = SwitchSettings(limits=DEFAULT_LIMITS._replace(initial_credit=5))
    async with open_switch(own) as switch, ready(switch, "m0", kind, ECHO, limits=SMALL) as master:
        request = switch.open_request(ECHO, Caller())
        assert request.limits == SMALL._replace(initial_credit=5)
        assert request.host == master.name


async def test_a_request_over_the_limit_is_refused(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO, limits=SMALL):
        with pytest.raises(
            RequestFailedError, match=r"REQ of \d+ bytes is over the receiving link's max_frame"
        ) as caught:
            switch.open_request(f'cap:echo;in="media:octets;name={"x" * 600}"', Caller())
        assert caught.value.code == "PROTOCOL_VIOLATION"
        assert switch.snapshot()["requests"]["total_registered"] == 0


async def test_a_frame_over_the_limit_ends_its_request_and_nothing_else(
    kind: LinkKind, clock: MockClock | None
) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO, limits=SMALL) as master:
        neighbour, caller = Caller(), Caller()
        other = switch.open_request(ECHO, neighbour)
        request = switch.open_request(ECHO, caller)
        request.send(body(request.rid, b"\x59\x02\x58" + b"x" * 600))
        terminal = await caller.terminal()
        assert terminal.meta["code"] == "PROTOCOL_VIOLATION"
        assert "CHUNK of" in terminal.meta["message"]
        await master.skip_to(FrameType.CANCEL)
        # The row stays for the handler's terminal, which nobody waits for.
        assert len(switch.snapshot()["requests"]["active"]) == 2
        master.send(Answer(request.rid, request.xid).err(), Answer(other.rid, other.xid).end())
        assert (await neighbour.terminal()).type is FrameType.END
        assert switch.snapshot()["requests"]["active"] == []
        assert len(caller.terminals) == 1


async def test_nobody_serves_it(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO):
        with pytest.raises(RequestFailedError, match="no attached host serves cap:") as caught:
            switch.open_request(UPPER, Caller())
        assert (caught.value.code, caught.value.attribution) == ("NO_HANDLER", AttributionClass.ENVIRONMENT)
        with pytest.raises(RequestFailedError, match="no cap URN") as caught:
            switch.open_request("upper", Caller())
        assert (caught.value.code, caught.value.attribution) == ("INVALID_REQUEST", AttributionClass.INPUT)


async def test_the_best_host_is_chosen_and_a_hint_wins(kind: LinkKind, clock: MockClock | None) -> None:
    """S11, S12."""
    plain, special = "cap:chat;out=media:text", "cap:chat;model=big;out=media:text"
    async with (
        open_switch() as switch,
        ready(switch, "plain", kind, plain),
        ready(switch, "special", kind, special),
    ):
        assert switch.open_request(plain, Caller()).host == "plain"
        assert switch.open_request(special, Caller()).host == "special"
        assert switch.open_request(plain, Caller(), preferred=special).host == "special"


async def test_a_full_table_refuses_and_keeps_what_it_has(kind: LinkKind, clock: MockClock | None) -> None:
    settings = SwitchSettings(table_limit=2)
    async with open_switch(settings) as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        switch.open_request(ECHO, Caller())
        with pytest.raises(RequestFailedError, match="2 requests are live") as caught:
            switch.open_request(ECHO, Caller())
        assert (caught.value.code, caught.value.attribution) == ("TABLE_FULL", AttributionClass.RESOURCE)
        await master.next(FrameType.REQ)
        master.send(Answer(request.rid, request.xid).end())
        await caller.terminal()
        switch.open_request(ECHO, Caller())


async def test_frames_that_are_not_a_callers(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        request = switch.open_request(ECHO, Caller())
        await master.next(FrameType.REQ)
        sendable = {
            kind for kind in FrameType if REQUEST_LIFE[RequestState.BODY][Side.REQUESTER, kind].verdict is Verdict.TAKE
        }
        for forbidden in set(FrameType) - sendable:
            with pytest.raises(LocalProtocolError, match=f"{forbidden.name} is not a caller's to send"):
                request.send([Frame(forbidden, request.rid)])
        with pytest.raises(LocalProtocolError, match="media_urn"):
            request.send([Frame(FrameType.STREAM_START, request.rid, stream_id="s", media_urn=b"x")])  # type: ignore[arg-type]
        request.send([body_end_frame(request.rid), body_end_frame(request.rid)])
        await master.next(FrameType.END)
        assert master.untaken() == []
        assert switch.snapshot()["drops"]["by_reason_frame_type"] == {"protocol_violation": {"end": 1}}


async def test_a_caller_may_close_a_feed_and_cancel(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        request = switch.open_request(ECHO, Caller())
        await master.next(FrameType.REQ)
        request.send(
            [Frame(FrameType.CLOSE_STREAM, request.rid, stream_id="feed"), cancel_frame(request.rid, HOST_ABORT)]
        )
        close = await master.next(FrameType.CLOSE_STREAM)
        assert (close.seq, close.xid, close.stream_id) == (0, request.xid, "feed")
        assert (await master.next(FrameType.CANCEL)).meta["code"] == "ABORTED"


async def test_a_request_cannot_open_streams_without_end(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        master.send(*(Answer(request.rid, request.xid, f"s{index}").start() for index in range(65)))
        terminal = await caller.terminal()
        assert terminal.meta["code"] == "PROTOCOL_VIOLATION"
        assert "more than 64 streams" in terminal.meta["message"]
        assert (await master.next(FrameType.CANCEL)).meta["code"] == "PROTOCOL_VIOLATION"


async def test_a_delivery_that_raises_costs_its_own_caller_only(
    kind: LinkKind, clock: MockClock | None, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(batch: object) -> None:
        raise ValueError("no such luck")

    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        one, two = switch.open_request(ECHO, broken), switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        master.send(Answer(one.rid, one.xid).end(), Answer(two.rid, two.xid).end())
        assert (await caller.terminal()).type is FrameType.END
        assert switch.snapshot()["requests"]["active"] == []
    assert "no such luck" in caplog.text
    caplog.clear()


def test_every_frame_type_that_belongs_somewhere_has_its_place() -> None:
    taken = {
        FrameType[event.name]
        for cells in LINK_LIFE[Direction.HOST_TO_SWITCH].values()
        for event, cell in cells.items()
        if cell.verdict is Verdict.TAKE and event.name in FrameType.__members__
    }
    assert set(FROM_MASTER) == taken
    moved = {
        kind
        for cells in REQUEST_LIFE.values()
        for (_, kind), cell in cells.items()
        if cell.verdict is Verdict.TAKE and kind is not FrameType.REQ
    }
    assert set(ROUTES) == moved
