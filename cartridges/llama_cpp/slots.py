"""Who may be in the engine: requests wait here, in order of arrival, where a cancel reaches them at once.

llama.cpp gives no sign of life to a request that waits for a slot, or whose prompt waits behind another's (a lower
slot's prompt fills every batch), and so cannot be told to drop it. Hence two rules: never more choices in the engine
than it has slots, and one prompt at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Protocol


class Cancellable(Protocol):
    """What a wait needs of a request: `capdag.cartridge.Request` has it."""

    @property
    def cancelled(self) -> bool: ...

    def check_cancelled(self) -> None: ...

    def on_cancel(self, callback: Callable[[], object]) -> None: ...


def wait_until(ready: Callable[[], bool], changed: Condition, caller: Cancellable) -> None:
    """Wait, holding `changed`, until `ready()`. Raises what `caller` raises when it is cancelled meanwhile.

    `caller` must wake `changed` on cancel: see `wake_on_cancel`.
    """
    while not ready():
        caller.check_cancelled()
        changed.wait()


def wake_on_cancel(changed: Condition, caller: Cancellable) -> None:
    """Have a cancel of `caller` wake who waits on `changed`. Not to be called holding `changed`."""

    def wake() -> None:
        with changed:
            changed.notify_all()

    caller.on_cancel(wake)


class Turn:
    """One request's stay in the engine."""

    def __init__(self, slots: int) -> None:
        self.slots = slots


class Slots:
    """The engine's slots and its one place for a prompt."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._prompt: Turn | None = None
        self._waiting: deque[Turn] = deque()
        self._changed = Condition()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @contextmanager
    def turn(self, slots: int, caller: Cancellable) -> Iterator[Turn]:
        """Wait for `slots` free slots and the place for a prompt, and hold them for the block.

        Raises what `caller.check_cancelled` raises when it is cancelled while waiting.
        """
        turn = Turn(slots)
        wake_on_cancel(self._changed, caller)
        with self._changed:
            self._waiting.append(turn)
            try:
                wait_until(lambda: self._may_start(turn), self._changed, caller)
                self._free -= slots
                self._prompt = turn
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield turn
        finally:
            with self._changed:
                self._free += slots
                self._leave_prompt(turn)
                self._changed.notify_all()

    def prompt_done(self, turn: Turn) -> None:
        """Let the next prompt in. To be called when the turn's prompts are processed; once more does nothing."""
        with self._changed:
            self._leave_prompt(turn)
            self._changed.notify_all()

    def _may_start(self, turn: Turn) -> bool:
        return self._waiting[0] is turn and self._prompt is None and self._free >= turn.slots

    def _leave_prompt(self, turn: Turn) -> None:
        if self._prompt is turn:
            self._prompt = None
