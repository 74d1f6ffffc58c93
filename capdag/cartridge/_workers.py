"""Threads that handlers run in: as many as there is work at once, used again, and none waits in a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock, Thread

from ._errors import show_traceback

_KEPT_IDLE = 8
"""Threads that wait for more work; those beyond end when their work is done."""

Work = Callable[[], None]


class _Box:
    """Where a thread finds its next piece of work, one at a time. (`queue` would cost 1 ms of every cold start.)"""

    __slots__ = ("_filled", "_work")

    def __init__(self) -> None:
        self._filled = Lock()
        self._filled.acquire()
        self._work: Work | None = None

    def put(self, work: Work) -> None:
        self._work = work
        self._filled.release()

    def get(self) -> Work:
        self._filled.acquire()
        work, self._work = self._work, None  # an idle thread keeps nothing of what it did alive
        assert work is not None
        return work


class Workers:
    """Runs each piece of work in a thread of its own. `busy` counts the pieces that run; `on_idle` is called, from a
    worker, whenever it has become 0. Work must not raise; what does is shown on stderr."""

    def __init__(self, on_idle: Work) -> None:
        self.busy = 0
        self._lock = Lock()
        self._idle: list[_Box] = []
        self._backlog: deque[Work] = deque()
        self._on_idle = on_idle
        self._started = 0

    def run(self, work: Work) -> None:
        """Start `work` now, without waiting for other work. Where the system gives no more threads it starts when
        another piece is done; raises RuntimeError if there is none.
        """
        with self._lock:
            self.busy += 1
            box = self._idle.pop() if self._idle else None
            self._started += box is None
        if box is not None:
            box.put(work)
            return
        box = _Box()
        box.put(work)
        # A daemon: the process ends by its own deadline, not when the last handler pleases.
        thread = Thread(target=self._work, args=(box,), name=f"capdag-worker-{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                if self._idle:
                    self._idle.pop().put(work)
                elif self.busy > 1:
                    self._backlog.append(work)
                else:
                    self.busy = 0
                    raise

    def _work(self, box: _Box) -> None:
        while True:
            try:
                box.get()()
            except BaseException:  # noqa: BLE001 - a fault of ours; a thread that is lost would keep its place for ever
                show_traceback()
            with self._lock:
                self.busy -= 1
                if self._backlog:
                    box.put(self._backlog.popleft())
                    continue
                idle, kept = self.busy == 0, len(self._idle) < _KEPT_IDLE
                if kept:
                    self._idle.append(box)
            if idle:
                self._on_idle()
            if not kept:
                return
