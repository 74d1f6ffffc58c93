"""A link over descriptors: a cartridge's pipes, or one socket (contracts: Links)."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter

import trio

from capdag.wire import DEFAULT_LIMITS, Limits

from .bytelink import READ_SIZE, TURN, ByteLink, LinkEnd
from .outbox import Outbox

_LAST_READS = 64
"""Reads made of a descriptor whose process has ended: more than a pipe holds, bounded if a grandchild writes on."""


class FdLink(ByteLink):
    """Frames over a pair of non-blocking descriptors (the same one twice for a socket).

    `close_read` and `close_write` close the descriptors, each called once at the end, for a socket `close_write` alone.
    """

    def __init__(
        self,
        name: str,
        read_fd: int,
        write_fd: int,
        *,
        close_read: Callable[[], None],
        close_write: Callable[[], None],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(name, Outbox(write_fd), limits)
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._close_read = close_read
        self._close_write = close_write

    def _close(self) -> None:
        """Close each descriptor once, with no await in between: its number may be another's right after."""
        for fd, close in {self._read_fd: self._close_read, self._write_fd: self._close_write}.items():
            trio.lowlevel.notify_closing(fd)
            close()

    async def _write(self) -> None:
        await self._outbox.run()
        # The far end stopped reading; what it wrote before that still counts.
        self.drain()
        self._finish(LinkEnd.BROKEN, f"writing failed: {self._outbox.error}")

    async def _read(self) -> None:
        while self._end is None:
            await trio.lowlevel.wait_readable(self._read_fd)
            until = perf_counter() + TURN
            size = read = 0
            # After a short read there is nothing more: no look is needed to know that.
            while read == size and self._end is None and (not size or perf_counter() < until):
                size = self._reader.missing or self.read_size
                read = self._read_once(size)

    def drain(self) -> None:
        """Read and deliver what already lies in the descriptor, without waiting: an END may be there."""
        for _ in range(_LAST_READS):
            if self._end is not None or not self._read_once(READ_SIZE):
                return

    async def read_rest(self) -> None:
        """Do the same: it is all there."""
        self.drain()

    def _read_once(self, size: int) -> int:
        """One read of at most `size` bytes and its delivery; returns how many there were."""
        try:
            data = os.read(self._read_fd, size)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._finish(LinkEnd.BROKEN, f"reading failed: {error}")
            return 0
        if data:
            self._take(data)
        else:
            self._take_eof()
        return len(data)
