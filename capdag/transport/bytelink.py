"""What links over bytes have in common, whatever carries the bytes (contracts: Links)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from time import perf_counter

import trio

from capdag.errors import RemoteProtocolError
from capdag.wire import DEFAULT_LIMITS, Limits
from capdag.wire.blocks import BlockReader, Parcel, single_frames, write_parcels

from .links import Receiver, RunReceiver
from .outbox import ByteQueue

READ_SIZE, LEAST_READ = 65_536, 4096
"""One read, at most and at least. Larger reads make the allocator map and unmap memory each time."""

TURN = 0.002
"""Seconds that one link's frames may take before those of others have their turn. Thousands of the smallest frames are
in a full read: who floods a link with them gets smaller ones."""


class LinkEnd(Enum):
    """How a link ended."""

    EOF = auto()
    BROKEN = auto()
    VIOLATION = auto()
    CLOSED = auto()


class ByteLink:
    """Frames in and out of a byte stream. Subclasses read it, and own what `outbox` writes to.

    `violation` holds the error that ended the link, if the peer broke a rule. `heard` is set once a frame has come,
    `reads` counts the reads that brought some, `read_size` is how much to ask for next.
    """

    def __init__(self, name: str, outbox: ByteQueue, limits: Limits = DEFAULT_LIMITS) -> None:
        self.name = name
        self.violation: RemoteProtocolError | None = None
        self.heard = trio.Event()
        self.reads = 0
        self.read_size = READ_SIZE
        self._reader = BlockReader(limits.max_frame)
        self._max_frame = limits.max_frame
        self._outbox = outbox
        self._receiver: Receiver
        self._deliver: Callable[[Sequence[Parcel]], None] = lambda _: None
        self._end: LinkEnd | None = None
        self._reason = ""
        self._scope = trio.CancelScope()

    def set_limits(self, limits: Limits) -> None:
        """Use the negotiated limits from here on."""
        self._reader.set_max_frame(limits.read_limit)
        self._max_frame = limits.max_frame

    @property
    def bytes_queued(self) -> int:
        """Bytes that wait to be written."""
        return self._outbox.bytes_queued

    def send(self, batch: Sequence[Parcel]) -> None:
        """Append the frames to the outbox. Raises LocalProtocolError for one over max_frame; those before it went."""
        pieces: list[bytes] = []
        try:
            write_parcels(batch, self._max_frame, pieces)
        finally:
            self._outbox.append(*pieces)

    async def flushed(self) -> None:
        """Wait until everything sent so far is written, or the link has ended."""
        await self._outbox.flushed()

    def close(self) -> None:
        """End the link from this side, dropping what is queued (see `flushed`)."""
        self._finish(LinkEnd.CLOSED, "this side closed the link")

    def fail(self, reason: str) -> None:
        """End the link from this side because of the other."""
        self._finish(LinkEnd.BROKEN, reason)

    def _finish(self, end: LinkEnd, reason: str) -> None:
        if self._end is None:
            self._end, self._reason = end, reason
        self._scope.cancel()

    async def run(self, receiver: Receiver) -> LinkEnd:
        """Read and write until the link ends; then close what carries it and tell `receiver`.

        Cancellation ends the link the same way and passes through.
        """
        self.hand_over(receiver)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._read)  # a task of its own: fewer frames to wake through
        finally:
            self._end = self._end or LinkEnd.CLOSED
            self._close()
            self._receiver.closed(self._reason or "this side closed the link")
        return self._end

    def hand_over(self, receiver: Receiver) -> None:
        """Deliver what comes from here on, and the end, to `receiver`."""
        self._receiver = receiver
        if isinstance(receiver, RunReceiver):
            self._reader.runs, self._deliver = True, receiver.deliver_parcels
        else:
            self._reader.runs, self._deliver = False, lambda parcels: receiver.deliver(single_frames(parcels))

    @property
    def end(self) -> LinkEnd | None:
        """How the link ended; None before."""
        return self._end

    @property
    def reason(self) -> str:
        """Why the link ended, for people; empty before."""
        return self._reason

    async def read_rest(self) -> None:
        """Deliver what the other side, which has ended, has left on its way."""
        raise NotImplementedError

    def _close(self) -> None:
        """Close what carries the bytes, without awaiting."""
        raise NotImplementedError

    async def _write(self) -> None:
        """Run the outbox, and end the link when that ends."""
        raise NotImplementedError

    async def _read(self) -> None:
        """Read until the link has ended."""
        raise NotImplementedError

    def _take(self, data: bytes) -> None:
        """Deliver the frames that are whole with the bytes of one read."""
        began = perf_counter()
        parcels: list[Parcel] = []
        try:
            self._reader.feed(data, parcels)
        except RemoteProtocolError as error:
            self.violation = error
        # What came before a bad frame was good: it is delivered.
        if parcels:
            self.reads += 1
            if self.reads == 1:
                self.heard.set()
            self._deliver(parcels)
        if self.violation is not None:
            self._finish(LinkEnd.VIOLATION, str(self.violation))
        self._adapt(perf_counter() - began)

    def _adapt(self, seconds: float) -> None:
        """Choose the size of the next read by what the frames of this one took."""
        if seconds > TURN:
            self.read_size = max(self.read_size // 2, LEAST_READ)
        elif self.read_size < READ_SIZE and seconds < TURN / 4:
            self.read_size *= 2

    def _take_eof(self) -> None:
        try:
            self._reader.eof()
        except RemoteProtocolError as error:
            self._finish(LinkEnd.BROKEN, str(error))
        else:
            self._finish(LinkEnd.EOF, "the other side closed the link")
