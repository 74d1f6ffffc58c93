"""The life of the streams of one direction of a request, at its receiving end (protocol-spec/wire.md, Streams).

Routers do not use this: checksums and counts are checked at the ends only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError

from .cbor import decode_value
from .checksum import fnv1a_64
from .credit import ReceiveWindow
from .frame import show_value
from .life import Life, Verdict
from .stream_life import RECEIVER_LIFE, STREAM_EVENTS, STREAM_LIFE, StreamEvent, StreamState, WindowEvent, WindowState
from .values import DEFAULT_MAX_ITEM, ItemReader
from .view import FrameView

MAX_STREAMS = 64
"""Streams that one direction of a request may open (setting)."""


class StreamHead(NamedTuple):
    """What STREAM_START said. `output` is None for the main output."""

    stream_id: str
    media_urn: str
    is_sequence: bool
    unbounded: bool
    output: str | None
    meta: Mapping[str, Any]


class Received(NamedTuple):
    """What one CHUNK gave: whole values (scalar: one, sequence: any number), the meta of the item it began.

    `grant_now` is the grant due at once: continuation CHUNKs of an item, and empty ones, count as consumed on arrival.
    `owed` is how many CHUNKs the receiver must count as consumed when it has used the values.
    """

    values: list[Any]
    meta: Mapping[str, Any]
    owed: int
    grant_now: int


class StreamRule(Enum):
    """The rules of streams, for whoever has to say which one was broken."""

    LIFE = auto()
    """What may come when: `STREAM_LIFE`, and the number of streams."""
    INDEX = auto()
    CHECKSUM = auto()
    COUNT = auto()
    ITEM = auto()
    """An item begins on a fresh CHUNK."""
    OUTPUT = auto()
    """The streams of an answer are outputs of its cap: `AnswerRules`."""


class BrokenStreamError(RemoteProtocolError):
    """The sender of a stream broke `rule`."""

    def __init__(self, rule: StreamRule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class InStream:
    """One incoming stream. Every method raises RemoteProtocolError when the sender breaks a rule."""

    def __init__(self, head: StreamHead, initial_credit: int, max_item: int) -> None:
        self.head = head
        self.window = ReceiveWindow(initial_credit)
        self._life = Life(STREAM_LIFE, StreamState.NONE)
        self._chunks = 0
        self._items = ItemReader(max_item)
        self._meta: Mapping[str, Any] = {}
        self.move(StreamEvent.START)

    @property
    def ended(self) -> bool:
        """True once nothing more may come."""
        return self._life.state is StreamState.ENDED

    def move(self, event: StreamEvent) -> None:
        """Let something happen to the stream, as its table says."""
        cell = self._life.take(event)
        if cell.verdict is Verdict.VIOLATE:
            raise BrokenStreamError(
                StreamRule.LIFE, cell.why.format(type=event, stream=show_value(self.head.stream_id))
            )

    def chunk(self, view: FrameView) -> Received:
        """Take a CHUNK: check credit, index, checksum and value."""
        name = self.head.stream_id
        continued = self._life.state is StreamState.IN_ITEM
        self.move(StreamEvent.CHUNK)
        if not self.window.arrive():
            why = RECEIVER_LIFE[WindowState.EMPTY][WindowEvent.CHUNK].why
            raise CreditViolationError(f"CREDIT_VIOLATION: {why.format(stream=show_value(name))}")
        index, payload = view.fields[14], view.fields.get(6) or b""
        if index != self._chunks:
            raise BrokenStreamError(
                StreamRule.INDEX, f"stream {show_value(name)}: CHUNK {index} came where {self._chunks} was due"
            )
        if fnv1a_64(payload) != view.fields[16]:
            raise BrokenStreamError(
                StreamRule.CHECKSUM, f"stream {show_value(name)}: CHUNK {index} has a wrong checksum"
            )
        self._chunks += 1
        if not self.head.is_sequence:
            return Received([decode_value(payload)], view.meta, 1, 0)
        return self._fragment(payload, view.meta, continued=continued)

    def _fragment(self, payload: bytes, meta: Mapping[str, Any], *, continued: bool) -> Received:
        if not continued:
            self._meta = meta
        values = self._items.feed(payload)
        if len(values) > 1 or (values and self._items.inside_item):
            raise BrokenStreamError(
                StreamRule.ITEM,
                f"stream {show_value(self.head.stream_id)}: an item begins in a CHUNK that holds the end of another",
            )
        if self._items.inside_item:
            self.move(StreamEvent.FRAGMENT)
        used = continued or not payload
        return Received(values, self._meta, 0 if used else 1, self.window.consume() if used else 0)

    def end(self, view: FrameView) -> None:
        """Take the STREAM_END: check the count and that no item is open."""
        name, count = self.head.stream_id, view.fields.get(15)
        self.move(StreamEvent.STREAM_END)
        if count is not None and count != self._chunks:
            raise BrokenStreamError(
                StreamRule.COUNT,
                f"stream {show_value(name)} ended with chunk_count {count} after {self._chunks} CHUNKs",
            )


class CreditViolationError(RemoteProtocolError):
    """A CHUNK came that no credit covered."""

    code = "CREDIT_VIOLATION"


class InStreams:
    """All incoming streams of one direction of one request."""

    def __init__(
        self, initial_credit: int, *, max_item: int = DEFAULT_MAX_ITEM, max_streams: int = MAX_STREAMS
    ) -> None:
        self._initial_credit = initial_credit
        self._max_item = max_item
        self._max_streams = max_streams
        self._streams: dict[str, InStream] = {}

    def start(self, view: FrameView) -> InStream:
        """Open the stream of a STREAM_START. Raises RemoteProtocolError for a second one, or one too many."""
        stream_id, media = view.stream_id, view.fields.get(12)
        if stream_id is None or media is None:
            raise RemoteProtocolError("STREAM_START needs stream_id and media_urn")
        if stream_id in self._streams:
            self._streams[stream_id].move(StreamEvent.START)
        if len(self._streams) >= self._max_streams:
            raise BrokenStreamError(StreamRule.LIFE, f"more than {self._max_streams} streams in one request")
        fields = view.fields
        head = StreamHead(stream_id, media, fields.get(17) is True, fields.get(20) is True, fields.get(21), view.meta)
        stream = InStream(head, self._initial_credit, self._max_item)
        self._streams[stream_id] = stream
        return stream

    def of(self, view: FrameView) -> InStream:
        """Return the stream a CHUNK or STREAM_END belongs to. Raises RemoteProtocolError for one never started."""
        stream = None if view.stream_id is None else self._streams.get(view.stream_id)
        if stream is None:
            (event, *_) = STREAM_EVENTS[view.type]
            why = STREAM_LIFE[StreamState.NONE][event].why
            raise BrokenStreamError(StreamRule.LIFE, why.format(type=event, stream=show_value(view.stream_id)))
        return stream

    def check_ended(self) -> None:
        """Check at a success END: every stream has ended. Raises RemoteProtocolError naming one that has not."""
        for stream in self._streams.values():
            stream.move(StreamEvent.END)

    def note_grant(self, stream_id: str | None, credit: int) -> None:
        """Count a CREDIT that was seen on its way to the sender. Without stream_id it is for the one stream open."""
        named = None if stream_id is None else self._streams.get(stream_id)
        if stream_id is None:
            still_open = [stream for stream in self._streams.values() if not stream.ended]
            named = still_open[0] if len(still_open) == 1 else None
        if named is not None:
            named.window.note_grant(credit)

    def __len__(self) -> int:
        return len(self._streams)
