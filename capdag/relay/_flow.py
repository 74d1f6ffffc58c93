"""One direction of a request as it passes the switch: what is counted, and what waits for credit.

Each link has a window of its own. Where the receiver's is smaller than the sender's, CHUNKs are held here to what the
receiver has granted; a stream's STREAM_END and the direction's END then wait behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from capdag.errors import RemoteProtocolError
from capdag.wire import TERMINAL_TYPES, CreditViolationError, FrameType, FrameView
from capdag.wire.streams import MAX_STREAMS

_CHUNK, _STREAM_START, _STREAM_END = FrameType.CHUNK, FrameType.STREAM_START, FrameType.STREAM_END


class Sink(Protocol):
    """Where frames of a request go: a master or a caller of ours."""

    name: str
    """Who it is, for people."""
    max_frame: int
    """Longest frame body it takes (bytes)."""

    @property
    def is_choked(self) -> bool:
        """True while it reads so slowly that a LOG for it is lost instead of queued."""

    def emit(self, batch: Sequence[FrameView]) -> None:
        """Take frames. Called by the dispatcher only."""


class Nobody:
    """The sink of a request whose caller has gone, or has had its terminal."""

    name = "nobody"
    max_frame = 2**32
    is_choked = False

    def emit(self, batch: Sequence[FrameView]) -> None:
        """Forget the frames."""


NOBODY = Nobody()


class Stream:
    """Counts of one stream. `replies` are frames about it in the other direction; `granted` never passes `chunks`."""

    __slots__ = ("bytes", "chunks", "ended", "frames", "granted", "held", "replies", "stream_id", "unbounded")

    def __init__(self, stream_id: str | None, *, unbounded: bool = False) -> None:
        self.stream_id = stream_id
        self.unbounded = unbounded
        self.ended = False
        self.frames = self.bytes = self.chunks = self.granted = self.replies = 0
        self.held: deque[FrameView] = deque()


class Flow:
    """One direction. `sink` receives it; `window` is what the sink offers a stream, `sender_window` what the sender
    was offered (CHUNKs). `pending` is a terminal that waits behind held frames."""

    __slots__ = ("_held", "last_seq", "loose", "pending", "sender_window", "sink", "streams", "window")

    def __init__(self, sink: Sink, window: int, sender_window: int) -> None:
        self.sink = sink
        self.window = window
        self.sender_window = sender_window
        self.streams: dict[str, Stream] = {}
        self.loose = Stream(None)
        self.last_seq = -1
        self.pending: FrameView | None = None
        self._held = 0

    def counted(self) -> list[Stream]:
        """Return all counts of this direction: those of its streams, and of what belongs to none."""
        return [*self.streams.values(), self.loose]

    def admit(self, view: FrameView) -> bool:
        """Count a flow frame; True if it may go on now, False if it is held. A terminal waits behind all that is held.

        Raises RemoteProtocolError for one stream too many, CreditViolationError for a CHUNK past the sender's window.
        """
        kind = view.type
        self.last_seq = max(self.last_seq, view.seq)
        stream = self._start(view) if kind is _STREAM_START else self.of(view.stream_id)
        stream.frames += 1
        if kind is _CHUNK:
            return self._admit_chunk(stream, view)
        stream.bytes += view.payload_size
        if kind is _STREAM_END:
            stream.ended = True
            if stream.held:
                return self._hold(stream, view)
        elif kind in TERMINAL_TYPES and self._held:
            self.pending = view
            return False
        return True

    def swallow(self, view: FrameView) -> None:
        """Count a flow frame that is discarded. Nothing is refused: the request is over but for its terminal."""
        starts = view.type is _STREAM_START and len(self.streams) < MAX_STREAMS
        stream = self._start(view) if starts else self.of(view.stream_id)
        stream.frames += 1
        stream.bytes += view.payload_size
        if view.type is _CHUNK:
            stream.chunks += 1
        elif view.type is _STREAM_END:
            stream.ended = True

    def of(self, stream_id: str | None) -> Stream:
        """Return the stream that counts frames with this id. A CHUNK of a stream never started has no credit to
        count: its receiver refuses it."""
        return self.streams.get(stream_id, self.loose) if stream_id is not None else self.loose

    def _start(self, view: FrameView) -> Stream:
        stream_id = view.stream_id
        if stream_id is None or stream_id in self.streams:
            return self.of(stream_id)
        if len(self.streams) >= MAX_STREAMS:
            raise RemoteProtocolError(f"more than {MAX_STREAMS} streams in one direction of a request")
        stream = self.streams[stream_id] = Stream(stream_id, unbounded=view.fields.get(20) is True)
        return stream

    def _admit_chunk(self, stream: Stream, view: FrameView) -> bool:
        stream.chunks += 1
        stream.bytes += view.payload_size
        owed = stream.chunks - stream.granted
        if (owed <= self.window and not stream.held) or stream is self.loose:
            return True
        if owed > self.sender_window:
            raise CreditViolationError(
                f"stream {stream.stream_id!r} sent a CHUNK past its window of {self.sender_window}"
            )
        return self._hold(stream, view)

    def _hold(self, stream: Stream, view: FrameView) -> bool:
        stream.held.append(view)
        self._held += 1
        return False

    def grant(self, view: FrameView) -> list[FrameView]:
        """Count a CREDIT for this direction; returns what it sets free, in order, at the end perhaps the terminal."""
        stream = self._granted(view.stream_id)
        if stream is None:
            return []
        stream.replies += 1
        stream.granted = min(stream.chunks, stream.granted + view.fields[19])
        free: list[FrameView] = []
        while stream.held and (stream.held[0].type is _STREAM_END or self._credit(stream) > 0):
            free.append(stream.held.popleft())
        self._held -= len(free)
        if self.pending is not None and not self._held:
            free.append(self.pending)
            self.pending = None
        return free

    def _granted(self, stream_id: str | None) -> Stream | None:
        """A CREDIT without stream_id is for the one open stream, if there is just one."""
        if stream_id is not None:
            return self.streams.get(stream_id)
        still_open = [stream for stream in self.streams.values() if not stream.ended]
        return still_open[0] if len(still_open) == 1 else None

    def _credit(self, stream: Stream) -> int:
        """CHUNKs of held ones that the receiver's window still takes."""
        waiting = len(stream.held) - (1 if stream.ended else 0)
        return self.window + stream.granted - (stream.chunks - waiting)

    def discard_held(self) -> FrameView | None:
        """Forget what is held, since nobody waits for it; returns the terminal that waited behind it."""
        for stream in self.streams.values():
            stream.held.clear()
        self._held = 0
        pending, self.pending = self.pending, None
        return pending

    def refill(self, least: int) -> Iterator[tuple[str, int]]:
        """Count and yield (stream_id, credit) for open streams owed `least` CHUNKs or more, whose frames are
        discarded: a handler that writes on must not block."""
        for stream_id, stream in self.streams.items():
            owed = stream.chunks - stream.granted
            if not stream.ended and owed >= least:
                stream.granted = stream.chunks
                yield stream_id, owed
