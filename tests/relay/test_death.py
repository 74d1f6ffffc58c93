"""A host goes away: everything its link held is settled, at every stage of a request."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from capdag.relay import SwitchSettings, open_switch
from capdag.wire import DEFAULT_LIMITS, TERMINAL_TYPES, FrameType, cancel_frame, failure_of
from capdag.wire.meta import USER_CANCEL
from tests.relay.masters import ECHO, UPPER, Answer, Caller, LinkKind, body, peer_call, ready, until

PEER = b"peer call id 16b"


@pytest.mark.parametrize("phase", ["opened", "in the body", "sent", "streaming", "cancelled"])
async def test_calls_to_a_dead_host_end(kind: LinkKind, clock: MockClock | None, phase: str) -> None:
    """S19."""
    async with (
        open_switch() as switch,
        ready(switch, "other", kind, UPPER) as other,
        ready(switch, "m0", kind, ECHO) as master,
    ):
        caller, neighbour = Caller(), Caller()
        request, spared = switch.open_request(ECHO, caller), switch.open_request(UPPER, neighbour)
        seq = 0
        if phase != "opened":
            request.send(body(request.rid, b"\x40")[: 2 if phase == "in the body" else 4])
            await master.skip_to(FrameType.CHUNK)
        if phase == "streaming":
            answer = Answer(request.rid, request.xid)
            master.send(answer.start(), *answer.chunks(3))
            await caller.until(4)
            seq = 4
        if phase == "cancelled":
            request.cancel()
        master.link.close()
        terminal = await caller.terminal()
        why = failure_of(terminal.meta)
        assert (why.code, why.attribution.value, terminal.seq) == ("MASTER_DIED", "environment", seq)
        assert "host m0 went away" in why.message
        assert ("answered in part" in why.message) == (phase == "streaming")
        assert ("can be sent again" in why.message) == (phase != "streaming")
        other.send(Answer(spared.rid, spared.xid).end())
        assert (await neighbour.terminal()).type is FrameType.END
        snapshot = switch.snapshot()["requests"]
        assert snapshot["active"] == []
        assert snapshot["terminated_by_kind"] == {"master_died": 1, "end": 1}
        assert len(switch.alarms) == 0


async def test_what_lay_in_the_link_still_counts(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        master.send(Answer(request.rid, request.xid).end())
        if kind == "local":
            master.link.close()
        else:
            await master.link.flushed()  # type: ignore[attr-defined]
            master.link.close()
        assert (await caller.terminal()).type is FrameType.END


async def test_the_callee_of_a_peer_call_dies(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER))
        await b.take_request()
        b.link.close()
        error = await a.skip_to(FrameType.ERR)
        assert (error.xid, error.meta["code"], error.seq) == (1, "MASTER_DIED", 0)
        assert switch.snapshot()["requests"]["active"] == []


@pytest.mark.parametrize("finished", [False, True], ids=["in the body", "sent"])
async def test_the_caller_of_a_peer_call_dies(kind: LinkKind, clock: MockClock | None, finished: bool) -> None:
    """S19."""
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER, b"\x40")[: 5 if finished else 3])
        await b.skip_to(FrameType.END if finished else FrameType.CHUNK)
        a.link.close()
        cancel = await b.next(FrameType.CANCEL)
        assert (cancel.xid, cancel.meta["code"], cancel.meta["attribution_class"]) == (
            1,
            "ABORTED_COLLATERAL",
            "environment",
        )
        if not finished:
            error = await b.next(FrameType.ERR)
            assert (error.xid, error.seq, error.meta["code"]) == (1, 3, "ABORTED_COLLATERAL")
        assert len(switch.snapshot()["requests"]["active"]) == 1
        answer = Answer(PEER, 1)
        b.send(answer.start(), answer.chunk(b"\x40"), answer.err("ABORTED_COLLATERAL", "environment"))
        await until(lambda: not switch.snapshot()["requests"]["active"])
        assert b.untaken() == []


async def test_an_orphaned_call_that_never_ends_has_its_deadline(kind: LinkKind, clock: MockClock | None) -> None:
    async with (
        open_switch(SwitchSettings(cancel_deadline=0.2)) as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO) as b,
    ):
        a.send(*peer_call(PEER))
        await b.take_request()
        a.link.close()
        await b.next(FrameType.CANCEL)
        await until(lambda: not switch.snapshot()["requests"]["active"])
        assert len(switch.alarms) == 0


async def test_both_ends_of_a_call_to_itself_die(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, ECHO) as a:
        a.send(*peer_call(PEER))
        await a.take_request()
        a.link.close()
        await until(lambda: switch.snapshot()["requests"]["terminated_by_kind"] == {"master_died": 1})


async def test_a_handlers_calls_are_cancelled_with_it(kind: LinkKind, clock: MockClock | None) -> None:
    """The dead host served a request and had made a call for it: one ends, the other is cancelled, both halves."""
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        caller = Caller()
        request = switch.open_request(UPPER, caller)
        await a.next(FrameType.REQ)
        a.send(*peer_call(PEER, parent_rid=request.rid))
        await b.take_request()
        a.link.close()
        assert (await caller.terminal()).meta["code"] == "MASTER_DIED"
        assert (await b.next(FrameType.CANCEL)).meta["code"] == "ABORTED_COLLATERAL"
        b.link.close()
        await until(lambda: not switch.snapshot()["requests"]["active"])
        assert switch.snapshot()["requests"]["terminated_by_kind"] == {"master_died": 2}


async def test_a_cancelled_peer_call_whose_callee_dies(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER))
        await b.take_request()
        a.send(cancel_frame(PEER, USER_CANCEL))
        await b.next(FrameType.CANCEL)
        b.link.close()
        assert (await a.skip_to(FrameType.ERR)).meta["code"] == "MASTER_DIED"


@pytest.mark.parametrize("how", ["the host dies", "the switch goes down"])
async def test_a_call_that_ends_while_others_are_settled(kind: LinkKind, clock: MockClock | None, how: str) -> None:
    """Settling the first call cancels the second, which lets go of a terminal that waited: it ends once."""
    wide = DEFAULT_LIMITS._replace(initial_credit=64)
    child = b"child of a call!"
    async with (
        open_switch(SwitchSettings(limits=wide)) as switch,
        ready(switch, "a", kind, UPPER, limits=wide) as a,
        ready(switch, "b", kind, ECHO) as b,
    ):
        a.send(*peer_call(PEER))
        await b.take_request()
        b.send(*peer_call(child, cap=UPPER, parent_rid=PEER))
        answer = (await a.take_request()).answer
        a.send(answer.start(), *answer.chunks(40), answer.stream_end(), answer.end())
        await until(lambda: len(b.untaken()) == 33)
        if how == "the host dies":
            a.link.close()
        else:
            switch.close()
        assert (await b.skip_to(FrameType.CANCEL)).id == PEER
        ends = [view.type.name for view in b.seen if view.id == child and view.type in TERMINAL_TYPES]
        assert ends == ["END"]
        assert switch.snapshot()["requests"]["terminated_by_kind"] == {"end": 1}


async def test_a_thousand_requests_of_a_dead_host(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        callers = [Caller() for _ in range(1000)]
        for caller in callers:
            switch.open_request(ECHO, caller)
        master.link.close()
        for caller in callers:
            assert (await caller.terminal()).meta["code"] == "MASTER_DIED"
        assert len(switch.snapshot()["requests"]["recent_terminated"]) == 64
