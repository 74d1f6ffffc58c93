"""One direction of one request in the host: numbers, credit, what waits (protocol-spec/host.md, Credit).

Credit is counted where the sender is a cartridge, which nobody has to trust (`Edge`). Where the receiver's window may
be smaller than the sender's, CHUNKs wait here for the receiver's grants (`Hold`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from capdag.wire import (
    PAYLOAD_HEADROOM,
    TERMINAL_TYPES,
    DropReason,
    FrameType,
    FrameView,
    Limits,
    SendWindow,
    show_value,
)
from capdag.wire.blocks import ChunkRun
from capdag.wire.limits import MOST_BESIDES_PAYLOAD

if TYPE_CHECKING:
    from .cartridge import Cartridge

_STREAMED = frozenset({FrameType.STREAM_START, FrameType.CHUNK})


class Fault(NamedTuple):
    """How a sender broke the limits of its request: an error code, and words that follow its name."""

    code: Literal["CREDIT_VIOLATION", "PROTOCOL_VIOLATION"]
    text: str

    @property
    def drop_reason(self) -> DropReason:
        """Why the frame goes nowhere, for the counts."""
        return "credit_violation" if self.code == "CREDIT_VIOLATION" else "protocol_violation"


class Edge:
    """Counts the streams, payloads and CHUNKs that an untrusted sender puts in one direction of a request.

    `remaining`: the CHUNKs that it may still send, a stream.
    """

    __slots__ = ("_max_payload", "_max_streams", "_window", "remaining")

    def __init__(self, limits: Limits, max_streams: int) -> None:
        self._window = limits.initial_credit
        self._max_payload = limits.max_chunk + PAYLOAD_HEADROOM
        self._max_streams = max_streams
        self.remaining: dict[str | None, int] = {}

    def fault(self, view: FrameView) -> Fault | None:
        """Count one frame. Returns why its request has to end, or None."""
        if view.type not in _STREAMED:
            return None
        size = len(view.body)
        if size > MOST_BESIDES_PAYLOAD and (besides := size - view.payload_size) > MOST_BESIDES_PAYLOAD:
            text = f"sent a {view.type.name} of {besides} bytes besides its payload; the most is {MOST_BESIDES_PAYLOAD}"
            return Fault("PROTOCOL_VIOLATION", text)
        stream = view.stream_id
        left = self.remaining.get(stream)
        if left is None:
            if len(self.remaining) >= self._max_streams:
                text = f"opened more than {self._max_streams} streams (max_streams) in one request"
                return Fault("PROTOCOL_VIOLATION", text)
            left = self._window
        if view.type is FrameType.CHUNK:
            if left <= 0:
                text = f"sent a CHUNK on stream {show_value(stream)} without credit (its window is {self._window})"
                return Fault("CREDIT_VIOLATION", text)
            if view.payload_size > self._max_payload:
                size = view.payload_size
                text = f"sent a payload of {size} bytes on stream {show_value(stream)}; the most is {self._max_payload}"
                return Fault("PROTOCOL_VIOLATION", text)
            left -= 1
        self.remaining[stream] = left
        return None

    def takes(self, run: ChunkRun) -> bool:
        """Count a run; False, and nothing is counted, if one of its CHUNKs may have a fault."""
        left = self.remaining.get(run.stream_id, 0) - run.count
        if left < 0 or run.largest_payload > self._max_payload:
            return False
        self.remaining[run.stream_id] = left
        return True

    def grant(self, stream_id: str | None, credit: int) -> None:
        """Count a grant on its way to the sender; it never lifts what remains above the window."""
        stream = _named(stream_id, self.remaining)
        left = self.remaining.get(stream)
        if left is not None:
            self.remaining[stream] = min(self._window, left + credit)

    def ungranted(self) -> list[tuple[str, int]]:
        """Return the streams with CHUNKs that were not granted yet, and how many."""
        sent = ((stream, self._window - left) for stream, left in self.remaining.items())
        return [(stream, count) for stream, count in sent if stream is not None and count]


def _named(stream_id: str | None, streams: Mapping[str | None, object]) -> str | None:
    """A CREDIT that names no stream means the only one there is."""
    return next(iter(streams)) if stream_id is None and len(streams) == 1 else stream_id


class Hold:
    """Keeps CHUNKs back until the receiver has granted them, and what must not overtake them.

    Each stream waits for itself: a receiver may read one to its end before it touches another.
    """

    __slots__ = ("_terminal", "_waiting", "_window", "_windows")

    def __init__(self, window: int) -> None:
        self._window = window
        self._windows: dict[str | None, SendWindow] = {}
        self._waiting: dict[str | None, deque[FrameView]] = {}
        self._terminal: FrameView | None = None

    def offer(self, view: FrameView) -> bool:
        """True if the frame may go on now; otherwise it is kept until `grant` gives it."""
        kind, stream = view.type, view.stream_id
        if kind is FrameType.CHUNK:
            window = self._windows.get(stream)
            if window is None:
                window = self._windows[stream] = SendWindow(self._window)
            if stream not in self._waiting and window.take():
                return True
            self._waiting.setdefault(stream, deque()).append(view)
            return False
        if kind is FrameType.STREAM_END and stream in self._waiting:
            self._waiting[stream].append(view)
            return False
        if kind in TERMINAL_TYPES and self._waiting:
            self._terminal = view
            return False
        return True

    def may_pass(self, run: ChunkRun) -> bool:
        """True if a whole run may go on now."""
        window = self._windows.get(run.stream_id)
        return window is not None and run.stream_id not in self._waiting and window.remaining >= run.count

    def passed(self, run: ChunkRun) -> None:
        """Count a run that goes on."""
        self._windows[run.stream_id].take(run.count)

    def grant(self, stream_id: str | None, credit: int) -> list[FrameView]:
        """Count a grant of the receiver; returns what may now go on, in order."""
        stream = _named(stream_id, self._windows)
        window = self._windows.get(stream)
        if window is None:
            return []
        window.grant(credit)
        freed: list[FrameView] = []
        waiting = self._waiting.get(stream)
        while waiting and (waiting[0].type is not FrameType.CHUNK or window.take()):
            freed.append(waiting.popleft())
        if waiting is not None and not waiting:
            del self._waiting[stream]
        if self._terminal is not None and not self._waiting:
            freed.append(self._terminal)
            self._terminal = None
        return freed

    def discard(self) -> list[FrameView]:
        """Give up what waits, and return it."""
        held = [view for waiting in self._waiting.values() for view in waiting]
        if self._terminal is not None:
            held.append(self._terminal)
        self._waiting.clear()
        self._terminal = None
        return held


class Flow:
    """One direction of a request.

    `next_seq` follows the last number seen; `ended` is True once its END or ERR has come. `debt`: bytes that its
    streams may come to, as counted by `Debt` towards the share of `payer`.
    """

    __slots__ = ("debt", "edge", "ended", "hold", "next_seq", "payer")

    def __init__(self, payer: Cartridge | None = None) -> None:
        self.payer = payer
        self.next_seq = 0
        self.ended = False
        self.debt = 0
        self.edge: Edge | None = None
        self.hold: Hold | None = None

    def note(self, view: FrameView) -> None:
        """See a flow frame go by."""
        if view.seq >= self.next_seq:
            self.next_seq = view.seq + 1
        if view.type in TERMINAL_TYPES:
            self.ended = True

    def opens(self, view: FrameView) -> bool:
        """True for a frame that opens a stream. Where the sender is trusted, only a STREAM_START does."""
        if self.edge is None:
            return view.type is FrameType.STREAM_START
        return view.type in _STREAMED and view.stream_id not in self.edge.remaining

    def takes(self, run: ChunkRun) -> bool:
        """Count a run whole; False, and nothing is counted, if one of its frames may have to wait or be refused."""
        hold, edge = self.hold, self.edge
        if self.ended or (hold is not None and not hold.may_pass(run)) or (edge is not None and not edge.takes(run)):
            return False
        if hold is not None:
            hold.passed(run)
        if run.last_seq >= self.next_seq:
            self.next_seq = run.last_seq + 1
        return True

    def offer(self, view: FrameView) -> bool:
        """True if the frame may go on now."""
        return self.hold is None or self.hold.offer(view)

    def ungranted(self) -> list[tuple[str, int]]:
        """Return the streams whose sender has sent CHUNKs that were not granted yet, and how many."""
        return [] if self.edge is None else self.edge.ungranted()

    def grant(self, view: FrameView) -> list[FrameView]:
        """Count a CREDIT of the receiver; returns the frames it sets free."""
        credit: int = view.fields[19]
        if self.edge is not None:
            self.edge.grant(view.stream_id, credit)
        return [] if self.hold is None else self.hold.grant(view.stream_id, credit)

    def discard(self) -> list[FrameView]:
        """Give up what waits, and return it."""
        return [] if self.hold is None else self.hold.discard()
