"""The way out for tasks: frames are appended at once, and a task that is ahead of the pipe waits for room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import Any

import trio

from capdag.errors import LocalProtocolError
from capdag.wire import DEFAULT_LIMITS, Frame

from ._async_input import Bell
from ._background import Background
from ._room import LARGE
from ._workers import Workers
from ._writer import Flow, FrameWriter

MAX_AHEAD = 65_536 + DEFAULT_LIMITS.max_chunk
"""Bytes that tasks may have posted before they wait: as much as a pipe holds, and one large CHUNK that a worker writes
meanwhile. Were it to wait for the next one, both threads would be woken for every CHUNK."""


class Line:
    """The frame writer as the loop's thread uses it, and the nursery of all that runs there. `news` is rung whenever
    something has gone out or a task has ended."""

    def __init__(self, writer: FrameWriter, workers: Workers, nursery: trio.Nursery) -> None:
        self.writer = writer
        self._workers = workers
        self._has_worker = False
        self.news = Bell()
        self.background = Background(self.spawn)
        self.tasks = 0
        self.token = trio.lowlevel.current_trio_token()
        self._nursery = nursery
        self._thread = get_ident()
        self._stuck = trio.Event()
        writer.on_relieved = self._flush_soon

    @property
    def is_here(self) -> bool:
        """True in the loop's thread."""
        return get_ident() == self._thread

    def spawn(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a task that must not raise, in a nursery that ends with the process."""
        self.tasks += 1
        self._nursery.start_soon(self._count, work, arguments)

    async def _count(self, work: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        try:
            await work(*arguments)
        finally:
            self.tasks -= 1
            self.news.notify_all()

    def post(self, frame: Frame, flow: Flow | None = None, *, terminal: bool = False) -> None:
        """Append a frame and send what goes without waiting. Raises LocalProtocolError in another thread."""
        if not self.is_here:
            raise LocalProtocolError("an async handler's request is for its own thread: use trio.from_thread.run_sync")
        self.writer.post(frame, flow, terminal=terminal)
        self.flush()

    def post_built(self, flow: Flow, build: Callable[[int], bytes]) -> None:
        """The same for a frame that is built once it has its number."""
        self.writer.post_built(flow, build)
        self.flush()

    def flush(self) -> None:
        """Send what goes without waiting, and wake who waits for that."""
        if self._has_worker:
            return
        if self.writer.backlog > LARGE:
            self._has_worker = True
            self._workers.run(self._send_large)
            return
        self.writer.flush()
        if self.writer.wants_room:
            self._stuck.set()
        elif self.writer.main_waits:
            self.writer.main_waits = False
            self.news.notify_all()

    @property
    def is_behind(self) -> bool:
        """True while tasks should wait for room."""
        return self.writer.backlog > MAX_AHEAD

    async def room(self) -> None:
        """Wait until little enough is posted. Not a checkpoint if it is."""
        while self.is_behind:
            self.writer.main_waits = True
            self.flush()
            if self.is_behind:
                self.writer.main_waits = True
                await self.news.wait()

    async def send_when_possible(self) -> None:
        """Send what was posted as the pipe takes it. Runs for ever."""
        while True:
            await self._stuck.wait()
            self._stuck = trio.Event()
            await trio.lowlevel.wait_writable(self.writer.fd)
            self.flush()

    def _send_large(self) -> None:
        self.writer.send_posted()
        self.token.run_sync_soon(self._sent_large)

    def _sent_large(self) -> None:
        self._has_worker = False
        self.flush()

    def _flush_soon(self) -> None:
        self.token.run_sync_soon(self.flush, idempotent=True)
