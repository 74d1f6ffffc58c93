"""Threads that handlers run in: as many as there is work at once, used again, and none waits in a queue."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

_KEPT_IDLE = 8
"""Threads that wait for more work; those beyond end when their work is done."""

Work = Callable[[], None]


class Workers:
    """Runs each piece of work in a thread of its own. `busy` counts the pieces that run; `on_idle` is called, from a
    worker, whenever it has become 0. Work must not raise."""

    def __init__(self, on_idle: Work) -> None:
        self.busy = 0
        self._lock = Lock()
        self._idle: list[SimpleQueue[Work]] = []
        self._on_idle = on_idle
        self._started = 0

    def run(self, work: Work) -> None:
        """Start `work` now. Never waits for another piece of work."""
        with self._lock:
            self.busy += 1
            box = self._idle.pop() if self._idle else None
            self._started += box is None
        if box is not None:
            box.put(work)
            return
        box = SimpleQueue()
        box.put(work)
        # Daemons: the process ends by its own deadline, not when the last handler pleases.
        Thread(target=self._work, args=(box,), name=f"capdag-worker-{self._started}", daemon=True).start()

    def _work(self, box: SimpleQueue[Work]) -> None:
        while True:
            box.get()()
            with self._lock:
                self.busy -= 1
                idle, kept = self.busy == 0, len(self._idle) < _KEPT_IDLE
                if kept:
                    self._idle.append(box)
            if idle:
                self._on_idle()
            if not kept:
                return
