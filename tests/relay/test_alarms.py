"""Alarms ring once, in order, and only if they are still wanted."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from capdag.relay._alarms import Alarms


async def test_alarms_ring_in_order(autojump_clock: MockClock) -> None:
    alarms, rung = Alarms(), list[tuple[str, float]]()
    start = trio.current_time()

    def ring(name: str) -> None:
        rung.append((name, trio.current_time() - start))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarms.after(5, lambda: ring("late"))
        dropped = alarms.after(2, lambda: ring("never"))
        alarms.after(1, lambda: alarms.drop(dropped))
        await trio.sleep(0.5)
        alarms.after(0.25, lambda: ring("early"))
        alarms.after(0.25, lambda: ring("next"))
        await trio.sleep(10)
        assert rung == [("early", 0.75), ("next", 0.75), ("late", 5.0)]
        assert len(alarms) == 0
        nursery.cancel_scope.cancel()


async def test_dropping_what_has_rung_or_never_was(autojump_clock: MockClock) -> None:
    alarms = Alarms()
    first = alarms.after(0, lambda: None)
    alarms.ring()
    alarms.after(1, lambda: None)
    alarms.drop(first)
    alarms.drop(None)
    assert len(alarms) == 1


async def test_an_alarm_may_set_another(autojump_clock: MockClock) -> None:
    alarms, rung = Alarms(), list[float]()

    def again() -> None:
        rung.append(trio.current_time())
        if len(rung) < 3:
            alarms.after(1, again)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        start = trio.current_time()
        alarms.after(1, again)
        await trio.sleep(10)
        assert [when - start for when in rung] == [1.0, 2.0, 3.0]
        nursery.cancel_scope.cancel()
