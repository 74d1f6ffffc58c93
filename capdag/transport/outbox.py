"""The one writer of a descriptor (contracts: Links).

Frames are appended without awaiting. While nothing is queued an append writes at once; only what the descriptor did not
take waits for the writer task. A writer that ends, however it ends, closes the descriptor: a torn frame never reaches
a link that lives on.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice

import trio

_MAX_BUFFERS = 512  # iovec entries of one writev; POSIX promises 16, Linux and macOS take 1,024


class Outbox:
    """Bytes on their way to a non-blocking descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: deque[bytes | memoryview] = deque()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._parked = False
        self._closed = False
        self.bytes_queued = 0
        self.error: OSError | None = None

    @property
    def broken(self) -> bool:
        """True once a write failed; `error` says how."""
        return self.error is not None

    def append(self, data: bytes) -> None:
        """Write or queue `data`. After the end it is ignored."""
        if self._closed or self.broken or not data:
            return
        self._queue.append(data)
        self.bytes_queued += len(data)
        if self._parked and len(self._queue) == 1:
            self._write_some()
        if self._queue:
            if self._idle.is_set():
                self._idle = trio.Event()
            self._wake.set()

    def _write_some(self) -> bool:
        """Write until the queue is empty (True) or the descriptor is full (False); a broken one sets `error`."""
        try:
            while self._queue:
                written = os.writev(self._fd, list(islice(self._queue, _MAX_BUFFERS)))
                self.bytes_queued -= written
                self._drop_written(written)
        except BlockingIOError:
            return False
        except OSError as error:
            self.error = error
            self._queue.clear()
            self.bytes_queued = 0
            self._wake.set()
        return True

    def _drop_written(self, written: int) -> None:
        while written:
            head = self._queue[0]
            if len(head) > written:
                self._queue[0] = memoryview(head)[written:]
                return
            written -= len(head)
            self._queue.popleft()

    async def run(self) -> None:
        """Write what is queued until the descriptor breaks (`error` says how) or the task is cancelled.

        The caller closes the descriptor afterwards, in every case.
        """
        try:
            while not self.broken:
                if not self._write_some():
                    await trio.lowlevel.wait_writable(self._fd)
                elif not self.broken:
                    await self._park()
        finally:
            self._closed = True
            self._queue.clear()
            self.bytes_queued = 0
            self._idle.set()

    async def _park(self) -> None:
        self._idle.set()
        self._wake = trio.Event()
        self._parked = True
        try:
            await self._wake.wait()
        finally:
            self._parked = False

    async def flushed(self) -> None:
        """Wait until nothing is queued (or the outbox has ended)."""
        while not self._idle.is_set():
            await self._idle.wait()
