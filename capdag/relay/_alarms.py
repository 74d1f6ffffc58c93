"""Calls that are due at a time, rung by one task."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

import trio


class Alarm(NamedTuple):
    """A call to come. Ordered by time, then by when it was set."""

    due: float
    serial: int
    call: Callable[[], None]


class Alarms:
    """Alarms that have not rung. One that is no longer needed must be dropped: memory follows the work in flight."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._pending: list[Alarm] = []
        self._serial = 0
        self._wake = trio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Set an alarm. `call` must not raise."""
        self._serial += 1
        alarm = Alarm(self._clock() + seconds, self._serial, call)
        insort(self._pending, alarm)
        if self._pending[0] is alarm:
            self._wake.set()
        return alarm

    def drop(self, alarm: Alarm | None) -> None:
        """Forget an alarm; one that has rung, or None, is left alone."""
        if alarm is None:
            return
        at = bisect_left(self._pending, alarm)
        if at < len(self._pending) and self._pending[at] is alarm:
            del self._pending[at]

    def ring(self) -> None:
        """Make every call that is due."""
        while self._pending and self._pending[0].due <= self._clock():
            self._pending.pop(0).call()

    async def run(self) -> None:
        """Ring alarms until cancelled."""
        while True:
            self._wake = trio.Event()
            with trio.move_on_at(self._pending[0].due if self._pending else float("inf")):
                await self._wake.wait()
            self.ring()
