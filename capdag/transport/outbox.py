"""The one writer of a link (contracts: Links).

Bytes are appended without awaiting, and leave in order. A writer that ends, however it ends, has its descriptor or
stream closed by whoever runs it: a torn frame never reaches a link that lives on.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from itertools import islice

import trio

_MAX_BUFFERS = 512  # iovec entries of one writev; POSIX promises 16, Linux and macOS take 1,024

_BATCH = 128 << 10
"""Bytes from which no more is added to one write to a stream."""


if sys.platform == "win32":  # where no descriptor is non-blocking: links there are over streams

    def _writev(fd: int, pieces: Sequence[bytes | memoryview]) -> int:
        return os.write(fd, b"".join(pieces))
else:
    _writev = os.writev

WriteError = OSError | trio.BrokenResourceError | trio.ClosedResourceError


class ByteQueue:
    """Bytes on their way out, and the task that writes them; how, its subclasses know."""

    def __init__(self) -> None:
        self._queue: deque[bytes | memoryview] = deque()
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._parked = False
        self._closed = False
        self.bytes_queued = 0
        self.error: WriteError | None = None

    @property
    def broken(self) -> bool:
        """True once a write failed; `error` says how."""
        return self.error is not None

    def append(self, *pieces: bytes) -> None:
        """Write or queue `pieces`, of which none is empty. After the end they are ignored."""
        if self._closed or self.error is not None or not pieces:
            return
        left: Sequence[bytes | memoryview] = pieces
        if self._parked and not self._queue:
            left = self._write_at_once(pieces)
            if not left:
                return
        self._queue.extend(left)
        self.bytes_queued += sum(map(len, left))
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()

    def _write_at_once(self, pieces: Sequence[bytes]) -> Sequence[bytes | memoryview]:
        """Nothing is queued and the writer is parked: write what can be written without waiting, return the rest."""
        return pieces

    async def _write(self) -> None:
        """Write of a queue that is not empty, waiting if need be; set `error` if that fails."""
        raise NotImplementedError

    def _break(self, error: WriteError) -> None:
        self.error = error
        self._queue.clear()
        self.bytes_queued = 0
        self._wake.set()

    async def run(self) -> None:
        """Write what is queued until that fails (`error` says how) or the task is cancelled.

        The caller closes the descriptor or stream afterwards, in every case.
        """
        try:
            while not self.broken:
                if self._queue:
                    await self._write()
                else:
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
        """Wait until nothing is queued (or the writer has ended)."""
        while not self._idle.is_set():
            await self._idle.wait()


class Outbox(ByteQueue):
    """Bytes on their way to a non-blocking descriptor.

    While nothing is queued an append writes at once; only what the descriptor did not take waits for the writer task.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def _write_at_once(self, pieces: Sequence[bytes]) -> Sequence[bytes | memoryview]:
        try:
            written = _writev(self._fd, pieces[:_MAX_BUFFERS])
        except BlockingIOError:
            return pieces
        except OSError as error:
            self._break(error)
            return ()
        for position, piece in enumerate(pieces):
            if len(piece) > written:
                return (memoryview(piece)[written:], *pieces[position + 1 :])
            written -= len(piece)
        return ()

    async def _write(self) -> None:
        if not self._write_some():
            await trio.lowlevel.wait_writable(self._fd)

    def _write_some(self) -> bool:
        """Write until the queue is empty (True) or the descriptor is full (False); a broken one sets `error`."""
        try:
            while self._queue:
                written = _writev(self._fd, list(islice(self._queue, _MAX_BUFFERS)))
                self.bytes_queued -= written
                self._drop_written(written)
        except BlockingIOError:
            return False
        except OSError as error:
            self._break(error)
        return True

    def _drop_written(self, written: int) -> None:
        while written:
            head = self._queue[0]
            if len(head) > written:
                self._queue[0] = memoryview(head)[written:]
                return
            written -= len(head)
            self._queue.popleft()


class StreamOutbox(ByteQueue):
    """Bytes on their way to a trio stream: what has gathered since the last write goes in one."""

    def __init__(self, stream: trio.abc.SendStream) -> None:
        super().__init__()
        self._stream = stream

    async def _write(self) -> None:
        batch, size = [], 0
        while self._queue and size < _BATCH:
            batch.append(self._queue.popleft())
            size += len(batch[-1])
        try:
            await self._stream.send_all(batch[0] if len(batch) == 1 else b"".join(batch))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._break(error)
        else:
            self.bytes_queued -= size
