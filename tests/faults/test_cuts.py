"""A link that is cut at any byte: every request ends once, nothing is left, and the host comes back."""

from __future__ import annotations

import gc

import pytest
import trio
from trio.testing import MockClock

from capdag.wire import FrameType
from tests.faults.rig import ROUTES, Rig, Wire, positions, rig, types
from tests.leaks import assert_no_leaks
from tests.misbehave import CALL, CAP, GOOD


async def conversation(it: Rig, wire: Wire) -> list[str]:
    """Join, wait for the caps, make three calls at once, one of which makes another, and part; return their ends."""
    over = await it.connect(wire)
    ends: list[str] = []

    async def ask(cap: str) -> None:
        ends.append(await it.ask(cap))

    with trio.fail_after(500):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait_for_caps, it, nursery.cancel_scope)
            nursery.start_soon(_wait_for, over, nursery.cancel_scope)
        if not over.is_set():
            async with trio.open_nursery() as nursery:
                for cap in (CAP, GOOD, CALL):
                    nursery.start_soon(ask, cap)
        wire.cut()
        await over.wait()
        await it.nothing_is_left()
    return ends


async def _wait_for_caps(it: Rig, scope: trio.CancelScope) -> None:
    for cap in (CAP, CALL):
        await it.switch.wait_for(cap)
    scope.cancel()


async def _wait_for(over: trio.Event, scope: trio.CancelScope) -> None:
    await over.wait()
    scope.cancel()


async def whole() -> Wire:
    """Return a wire that has carried the whole conversation."""
    async with rig() as it:
        wire = Wire()
        assert await conversation(it, wire) == ["answered"] * 3
        return wire


async def test_the_conversation_has_all_that_is_to_be_cut(autojump_clock: MockClock) -> None:
    wire = await whole()
    for passed in wire.passed:
        assert {FrameType.REQ, FrameType.STREAM_START, FrameType.CHUNK, FrameType.STREAM_END, FrameType.END} <= set(
            types(passed)
        )
        assert FrameType.CREDIT in types(passed)
        assert len(positions(passed)) > 80


@pytest.mark.parametrize("direction", [0, 1], ids=ROUTES)
async def test_a_cut_at_any_byte_ends_every_request_once(direction: int, autojump_clock: MockClock) -> None:
    """K22: One host lives through all the cuts; each time it is offered again and serves."""
    cuts = positions((await whole()).passed[direction])
    seen: set[str] = set()
    async with rig() as it:
        with assert_no_leaks():
            for cut_after in cuts:
                wire = Wire(direction, cut_after)
                ends = await conversation(it, wire)
                assert len(ends) in (0, 3)
                assert set(ends) <= {"answered", "MASTER_DIED"}, (cut_after, ends)
                seen |= set(ends)
        assert await conversation(it, Wire()) == ["answered"] * 3
        assert {name: facts["state"] for name, facts in it.switch.snapshot()["hosts"].items()} == {"host": "dead"}
    assert seen == {"answered", "MASTER_DIED"}


async def test_a_hundred_reconnects_leave_nothing(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """K22."""
    async with rig() as it:
        cut_after = len((await whole()).passed[1]) // 2
        counted: list[int] = []
        for number in range(100):
            ends = await conversation(it, Wire(1, cut_after))
            assert set(ends) <= {"answered", "MASTER_DIED"}
            if number in (49, 99):
                caplog.clear()
                gc.collect()
                counted.append(len(gc.get_objects()))
        assert await conversation(it, Wire()) == ["answered"] * 3
        assert len(it.switch.snapshot()["hosts"]) == 1
    # In so many the rings of ended requests, which are bounded, gain three a time.
    assert counted[1] - counted[0] < 50 * 20
