"""Frames on their way out of a turn: one batch for each receiver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from capdag.transport import Dispatcher
from capdag.wire import FrameView

from ._flow import NOBODY, Sink


class Outgoing:
    """Collects what a turn sends. Nothing is called before the turn's changes of state are complete."""

    def __init__(self) -> None:
        self._dispatcher = Dispatcher()
        self._batches: dict[Sink, list[FrameView]] = {}
        self.settle: Callable[[], None] = lambda: None
        """Called at the end of every turn, for what its changes have made possible."""

    def put(self, sink: Sink, view: FrameView) -> None:
        """Add a frame, in order, to what `sink` gets."""
        if sink is NOBODY:
            return
        batch = self._batches.get(sink)
        if batch is None:
            self._batches[sink] = [view]
        else:
            batch.append(view)

    def turn(self, work: Callable[[], None]) -> None:
        """Run `work`, now or after the turn under way, and send what it put."""
        self._dispatcher.run(partial(self._turn, work))

    def later(self, call: Callable[[], None]) -> None:
        """Make a call out of the switch once the turn under way is over."""
        self._dispatcher.run(call)

    def flush(self) -> None:
        """Send what has been put outside a turn."""
        self._dispatcher.run(self._emit)

    def _turn(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._emit()

    def _emit(self) -> None:
        self.settle()
        batches, self._batches = self._batches, {}
        for sink, batch in batches.items():
            # During a turn this queues: each receiver's call ends by itself, whatever another one raises.
            self._dispatcher.run(partial(sink.emit, batch))
