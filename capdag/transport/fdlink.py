"""A link over descriptors: a cartridge's pipes, or one socket (contracts: Links)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import Enum, auto

import trio

from capdag.errors import RemoteProtocolError
from capdag.wire import DEFAULT_LIMITS, FrameSplitter, FrameView, Limits, inspect, pack

from .links import Receiver
from .outbox import Outbox

READ_SIZE = 65_536
"""One read. Larger reads make the allocator map and unmap memory each time."""

_SHOWN = 64
"""Bytes of a bad frame that its error quotes."""

_LAST_READS = 64
"""Reads made of a descriptor whose process has ended: more than a pipe holds, bounded if a grandchild writes on."""


class LinkEnd(Enum):
    """How a link ended."""

    EOF = auto()
    BROKEN = auto()
    VIOLATION = auto()
    CLOSED = auto()


class FdLink:
    """Frames over a pair of non-blocking descriptors (the same one twice for a socket).

    `close_read` and `close_write` close the descriptors, each called once at the end, for a socket `close_write` alone.
    `violation` holds the error that ended the link, if the peer broke a rule.
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
        self.name = name
        self.violation: RemoteProtocolError | None = None
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._close_read = close_read
        self._close_write = close_write
        self._splitter = FrameSplitter(limits.max_frame)
        self._max_frame = limits.max_frame
        self._outbox = Outbox(write_fd)
        self._receiver: Receiver | None = None
        self._end: LinkEnd | None = None
        self._reason = ""
        self._scope = trio.CancelScope()

    def set_limits(self, limits: Limits) -> None:
        """Use the negotiated limits from here on."""
        self._splitter.max_frame = limits.read_limit
        self._max_frame = limits.max_frame

    @property
    def bytes_queued(self) -> int:
        """Bytes that wait for the descriptor."""
        return self._outbox.bytes_queued

    def send(self, batch: Sequence[FrameView]) -> None:
        """Append the frames to the outbox. Raises LocalProtocolError for one over max_frame; those before it went."""
        packed: list[bytes] = []
        try:
            for view in batch:
                packed.append(pack(view, self._max_frame))
        finally:
            self._outbox.append(packed[0] if len(packed) == 1 else b"".join(packed))

    async def flushed(self) -> None:
        """Wait until everything sent so far is written, or the link has ended."""
        await self._outbox.flushed()

    def close(self) -> None:
        """End the link from this side, dropping what is queued (see `flushed`)."""
        self._finish(LinkEnd.CLOSED, "this side closed the link")

    def _finish(self, end: LinkEnd, reason: str) -> None:
        if self._end is None:
            self._end, self._reason = end, reason
        self._scope.cancel()

    async def run(self, receiver: Receiver) -> LinkEnd:
        """Read and write until the link ends; then close the descriptors and tell `receiver`.

        Cancellation ends the link the same way and passes through.
        """
        self._receiver = receiver
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
        finally:
            self._end = self._end or LinkEnd.CLOSED
            self._close()
            receiver.closed(self._reason or "this side closed the link")
        return self._end

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
            self._read_once()

    def drain(self) -> None:
        """Read and deliver what already lies in the descriptor, without waiting: an END may be there."""
        for _ in range(_LAST_READS):
            if self._end is not None or not self._read_once():
                return

    def _read_once(self) -> bool:
        """One read and its delivery; False if there was nothing to read."""
        try:
            data = os.read(self._read_fd, READ_SIZE)
        except BlockingIOError:
            return False
        except OSError as error:
            self._finish(LinkEnd.BROKEN, f"reading failed: {error}")
            return False
        if data:
            self._take(data)
        else:
            self._take_eof()
        return bool(data)

    def _take(self, data: bytes) -> None:
        views: list[FrameView] = []
        try:
            for body in self._splitter.feed(data):
                views.append(self._inspect(body))
        except RemoteProtocolError as error:
            self.violation = error
        # What came before a bad frame was good: it is delivered.
        if views and self._receiver is not None:
            self._receiver.deliver(views)
        if self.violation is not None:
            self._finish(LinkEnd.VIOLATION, str(self.violation))

    def _inspect(self, body: bytes) -> FrameView:
        try:
            return inspect(body)
        except RemoteProtocolError as error:
            where = f"bad frame at stream offset {self._splitter.offset}"
            raise RemoteProtocolError(f"{where}: {error}; its body begins {body[:_SHOWN]!r}") from None

    def _take_eof(self) -> None:
        try:
            self._splitter.eof()
        except RemoteProtocolError as error:
            self._finish(LinkEnd.BROKEN, str(error))
        else:
            self._finish(LinkEnd.EOF, "the other side closed the link")
