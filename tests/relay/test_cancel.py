"""CANCEL: one terminal whatever the handler does, and no handler left behind."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from capdag.errors import AttributionClass
from capdag.relay import SwitchSettings, open_switch
from capdag.wire import (
    DEFAULT_LIMITS,
    RESPONSE,
    CancelReason,
    FrameType,
    FrameView,
    body_end_frame,
    cancel_frame,
    credit_frame,
    decode_value,
    failure_of,
)
from tests.relay.masters import ECHO, UPPER, Answer, Caller, LinkKind, body, peer_call, ready, until

PEER = b"peer call id 16b"
QUICK = SwitchSettings(cancel_deadline=0.2)
REASON = CancelReason("DEADLINE_EXCEEDED", AttributionClass.RESOURCE, "no answer in 5 s")


def shown(view: FrameView) -> tuple[object, ...]:
    return (view.type.name, view.xid, view.meta.get("code"), view.meta.get("attribution_class"), view.fields.get(18))


async def test_cancel_goes_to_the_handler_and_its_terminal_comes_back(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        request.send(body(request.rid, b"\x40"))
        answer = (await master.take_request()).answer
        await caller.until(1)
        request.cancel(REASON)
        request.cancel(CancelReason())
        assert shown(await master.next()) == ("CANCEL", 1, "DEADLINE_EXCEEDED", "resource", False)
        # The handler runs on until it notices; what it writes is wanted no more, and does not block it.
        master.send(answer.start(), answer.progress(0.5), *answer.chunks(16))
        grant = await master.next(FrameType.CREDIT)
        assert (grant.fields[19], grant.stream_id, grant.meta) == (16, "out-0", {"credit_dir": "response"})
        assert switch.snapshot()["requests"]["active"][0]["phase"] == "cancelled"
        master.send(answer.err("DEADLINE_EXCEEDED", "resource", "as asked"))
        assert (await caller.terminal()).meta["message"] == "as asked"
        assert [kind.name for kind in caller.types] == ["CREDIT", "ERR"]
        snapshot = switch.snapshot()
        assert snapshot["requests"]["terminated_by_kind"] == {"cancelled": 1}
        (ended,) = snapshot["requests"]["recent_terminated"]
        assert (ended["cancel_code"], ended["cancel_class"]) == ("DEADLINE_EXCEEDED", "resource")
        assert snapshot["drops"]["by_reason"] == {"cancelled": 18}
        assert master.untaken() == []
        assert len(switch.alarms) == 0


async def test_a_handler_that_waits_for_credit_is_set_free(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        request.send([body_end_frame(request.rid)])
        await master.next(FrameType.END)
        answer = Answer(request.rid, 1)
        master.send(answer.start(), *answer.chunks(32))
        await caller.until(33)
        request.send([credit_frame(request.rid, "out-0", 20, RESPONSE)])
        request.cancel()
        request.send([credit_frame(request.rid, "out-0", 12, RESPONSE)])
        assert (await master.next(FrameType.CREDIT)).fields[19] == 20
        await master.next(FrameType.CANCEL)
        # The caller's twelve are granted with the cancel, and what it sends later is not granted twice.
        assert (await master.next(FrameType.CREDIT)).fields[19] == 12
        master.send(*answer.chunks(100), answer.stream_end(), answer.end())
        await caller.terminal()
        await until(lambda: sum(view.fields[19] for view in master.untaken()) == 96)


async def test_a_body_that_is_not_finished_is_aborted(kind: LinkKind, clock: MockClock | None) -> None:
    """The public host knows no CANCEL: its handler would wait for the rest of its input."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        request = switch.open_request(ECHO, Caller())
        request.send(body(request.rid, b"\x40")[:-1])
        for _ in range(4):
            await master.next()
        request.cancel(REASON)
        request.send([body_end_frame(request.rid)])
        assert (await master.next(FrameType.CANCEL)).seq == 0
        error = await master.next(FrameType.ERR)
        assert shown(error) == ("ERR", 1, "DEADLINE_EXCEEDED", "resource", None)
        assert error.seq == 4
        assert master.untaken() == []


async def test_a_handler_that_wins_the_race(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        request.cancel()
        master.send(Answer(request.rid, 1).end())
        assert (await caller.terminal()).type is FrameType.END
        assert switch.snapshot()["requests"]["terminated_by_kind"] == {"end": 1}
        assert len(switch.alarms) == 0


async def test_a_handler_that_never_ends(kind: LinkKind, clock: MockClock | None) -> None:
    """S18."""
    async with open_switch(QUICK) as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        await master.next(FrameType.REQ)
        answer = Answer(request.rid, 1)
        master.send(answer.start(), answer.chunk(b"\x40"))
        await caller.until(2)
        began = trio.current_time()
        request.cancel(REASON)
        terminal = await caller.terminal()
        assert 0.2 <= trio.current_time() - began < 2
        why = failure_of(terminal.meta)
        assert (why.code, why.attribution, terminal.seq) == ("DEADLINE_EXCEEDED", AttributionClass.RESOURCE, 2)
        assert "has not ended within 0.2 s" in why.message
        assert switch.snapshot()["requests"]["active"] == []
        master.send(*answer.chunks(3), answer.stream_end(), answer.end())
        await until(lambda: switch.snapshot()["stragglers"]["total"] == 5)
        assert len(caller.terminals) == 1


async def test_force_kill_follows_a_cancel_once(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        request = switch.open_request(ECHO, Caller())
        request.send([body_end_frame(request.rid)])
        await master.skip_to(FrameType.END)
        request.cancel()
        request.cancel(force_kill=True)
        request.cancel(force_kill=True)
        request.cancel()
        assert (await master.next(FrameType.CANCEL)).fields[18] is False
        assert (await master.next(FrameType.CANCEL)).fields[18] is True
        master.send(Answer(request.rid, 1).err())
        await until(lambda: request.ended)
        assert master.untaken() == []


@pytest.mark.parametrize("force_kill", [False, True])
async def test_cancel_reaches_the_calls_that_the_handler_has_made(
    kind: LinkKind, clock: MockClock | None, force_kill: bool
) -> None:
    """S18."""
    async with (
        open_switch() as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO) as b,
        ready(switch, "c", kind, "cap:deep") as c,
    ):
        caller = Caller()
        request = switch.open_request(UPPER, caller)
        await a.next(FrameType.REQ)
        child, grandchild = b"child", b"grandchild"
        child, grandchild = child.ljust(16, b"."), grandchild.ljust(16, b".")
        a.send(*peer_call(child, parent_rid=request.rid))
        await b.take_request()
        b.send(*peer_call(grandchild, cap="cap:deep", parent_rid=child))
        await c.take_request()
        assert [row["children"] for row in switch.snapshot()["requests"]["active"]] == [1, 1, 0]
        request.cancel(REASON, force_kill=force_kill)
        for master, xid in ((a, 1), (b, 2), (c, 3)):
            cancel = await master.skip_to(FrameType.CANCEL)
            assert shown(cancel) == ("CANCEL", xid, "DEADLINE_EXCEEDED", "resource", force_kill)
        # The callers' own CANCELs come when they have heard of it: nothing is sent twice.
        a.send(cancel_frame(child, REASON))
        # A call made while the CANCEL was on its way gets the same reason.
        a.send(*peer_call(PEER, parent_rid=request.rid)[:1])
        late = await a.skip_to(FrameType.ERR)
        while late.id != PEER:
            late = await a.skip_to(FrameType.ERR)
        assert shown(late)[1:4] == (None, "DEADLINE_EXCEEDED", "resource")
        c.send(Answer(grandchild, 3).err())
        assert (await b.skip_to(FrameType.ERR)).id == grandchild
        b.send(Answer(child, 2).err())
        assert (await a.skip_to(FrameType.ERR)).id == child
        a.send(Answer(request.rid, 1).err())
        await caller.terminal()
        assert switch.snapshot()["requests"]["active"] == []
        assert b.untaken() == c.untaken() == []


async def test_a_parent_is_named_by_the_host_that_serves_it(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        request = switch.open_request(UPPER, Caller())
        await a.next(FrameType.REQ)
        b.send(*peer_call(PEER, parent_rid=request.rid)[:1])
        await b.next(FrameType.REQ)
        for odd in (7, "x", None, 1.5, [1]):
            rid = decode_value(b"\x50" + repr(odd).encode().ljust(16, b"."))
            a.send(*peer_call(rid, parent_rid=odd)[:1])
            await b.next(FrameType.REQ)
        assert [row["children"] for row in switch.snapshot()["requests"]["active"]] == [0] * 7


async def test_a_child_outlives_its_parents_end(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        caller = Caller()
        request = switch.open_request(UPPER, caller)
        await a.next(FrameType.REQ)
        a.send(*peer_call(PEER, parent_rid=request.rid))
        received = await b.take_request()
        a.send(Answer(request.rid, 1).end())
        await caller.terminal()
        b.send(received.answer.end())
        assert (await a.skip_to(FrameType.END)).id == PEER


async def test_a_call_that_has_ended_is_not_cancelled_with_its_parent(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        request = switch.open_request(UPPER, Caller())
        await a.next(FrameType.REQ)
        a.send(*peer_call(PEER, parent_rid=request.rid))
        b.send((await b.take_request()).answer.end())
        await a.skip_to(FrameType.END)
        request.cancel()
        assert (await a.skip_to(FrameType.CANCEL)).id == request.rid
        assert b.untaken() == []
        assert len(switch.alarms) == 1


async def test_a_long_reason_is_cut_to_what_any_link_takes(kind: LinkKind, clock: MockClock | None) -> None:
    small = DEFAULT_LIMITS._replace(max_frame=3000)
    async with (
        open_switch(QUICK) as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO, limits=small) as b,
    ):
        request = switch.open_request(UPPER, Caller())
        await a.next(FrameType.REQ)
        a.send(*peer_call(PEER, parent_rid=request.rid))
        await b.take_request()
        request.cancel(CancelReason("X" * 5000, AttributionClass.USER, "y" * 50_000))
        assert len((await b.skip_to(FrameType.CANCEL)).body) < 3000
        # The one that makes the call may not pass on what the other's link does not take.
        error = await a.skip_to(FrameType.ERR)
        while error.id != PEER:
            error = await a.skip_to(FrameType.ERR)
        assert len(error.body) < 3000


async def test_a_cartridge_cancels_its_own_call(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "a", kind, UPPER) as a, ready(switch, "b", kind, ECHO) as b:
        a.send(*peer_call(PEER))
        received = await b.take_request()
        a.send(cancel_frame(PEER, REASON))
        assert shown(await b.next()) == ("CANCEL", 1, "DEADLINE_EXCEEDED", "resource", False)
        b.send(received.answer.err("DEADLINE_EXCEEDED", "resource"))
        assert (await a.skip_to(FrameType.ERR)).meta["code"] == "DEADLINE_EXCEEDED"
        a.send(cancel_frame(PEER, REASON))
        await until(lambda: switch.snapshot()["stragglers"]["by_frame_type"] == {"cancel": 1})


async def test_cancel_lets_go_of_what_is_held(kind: LinkKind, clock: MockClock | None) -> None:
    """The handler has ended; its answer waits for a reader that will not come."""
    wide = SwitchSettings().limits._replace(initial_credit=64)
    async with (
        open_switch(SwitchSettings(limits=wide)) as switch,
        ready(switch, "a", kind, UPPER) as a,
        ready(switch, "b", kind, ECHO, limits=wide) as b,
    ):
        a.send(*peer_call(PEER))
        answer = (await b.take_request()).answer
        b.send(answer.start(), *answer.chunks(40), answer.stream_end(), answer.end())
        await until(lambda: len(a.untaken()) == 33)
        a.send(cancel_frame(PEER, REASON))
        await until(lambda: len(a.untaken()) == 34)
        assert a.untaken()[-1].type is FrameType.END
        assert switch.snapshot()["requests"]["active"] == []
        assert b.untaken() == []
