"""What goes out in one stream: its frames, its state, what is held back. No waiting and no sending here.

`Output` sends from a thread, `AsyncOutput` from a task; both are this core, a credit gate and a way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from capdag.errors import LocalProtocolError
from capdag.wire import (
    PAYLOAD_HEADROOM,
    XID_HEADROOM,
    Frame,
    FrameType,
    Limits,
    fnv1a_64,
    item_payloads,
    scalar_payloads,
)

from ._chunks import ChunkEncoder, Coalescer
from ._served import OutputFacts
from ._writer import Flow

_HEADER_ROOM = 192
"""Bytes of a CHUNK frame that are not payload, at most, when it has no meta."""

Build = Callable[[int], bytes]
"""Makes the bytes of a frame from its seq."""


class State(Enum):
    """A stream's life."""

    NEW, OPEN, ENDED = range(3)


class Head(NamedTuple):
    """What STREAM_START says. `media_urn` is what the author calls the stream, `output` is key 21."""

    stream_id: str
    media_urn: str
    stream_media: str
    is_sequence: bool
    output: str | None = None


class OutCore:
    """One outgoing stream. The methods here make frames and count; whoever calls them sends in the same order."""

    def __init__(self, head: Head, flow: Flow, limits: Limits) -> None:
        self._head = head
        self._flow = flow
        room = limits.max_frame - XID_HEADROOM - PAYLOAD_HEADROOM - _HEADER_ROOM
        self._max_piece = max(1, min(limits.max_chunk, room))
        self._encoder = ChunkEncoder(flow.rid, head.stream_id, flow.xid, limits.max_frame)
        self._held = Coalescer()
        self._state = State.NEW
        self._unbounded = False
        self._chunks = 0

    @property
    def media_urn(self) -> str:
        """The media URN this output was declared with."""
        return self._head.media_urn

    @property
    def is_sequence(self) -> bool:
        """True if this output takes items, False if it takes values."""
        return self._head.is_sequence

    @property
    def is_open(self) -> bool:
        """True between STREAM_START and STREAM_END."""
        return self._state is State.OPEN

    def _require(self, *, sequence: bool) -> None:
        if self._head.is_sequence is not sequence:
            verb, kind = ("write", "a sequence: use item") if self._head.is_sequence else ("item", "scalar: use write")
            raise LocalProtocolError(f"{verb} on output {self.media_urn!r}, which the cap declares {kind}")

    def _check_new(self, *, wanted: bool) -> None:
        if wanted and self._state is not State.NEW:
            raise LocalProtocolError(f"output {self.media_urn!r} is open already: what `open` says can go no more")

    def _start_frame(self, meta: Mapping[str, Any] | None = None, *, unbounded: bool = False) -> Frame | None:
        """Open the stream: its STREAM_START, or None if it is open. Raises LocalProtocolError once it has ended."""
        if self._state is State.OPEN:
            return None
        if self._state is State.ENDED:
            raise LocalProtocolError(f"output {self.media_urn!r} has ended: the handler has returned")
        self._state = State.OPEN
        self._unbounded = unbounded
        return Frame(
            FrameType.STREAM_START,
            self._flow.rid,
            stream_id=self._head.stream_id,
            media_urn=self._head.stream_media,
            routing_id=self._flow.xid,
            is_sequence=self._head.is_sequence,
            unbounded=unbounded or None,
            output=self._head.output,
            meta=meta,
        )

    def _pieces(self, value: Any) -> Iterator[bytes]:
        return scalar_payloads(value, self._max_piece)

    def _fragments(self, item: Any) -> list[bytes]:
        return item_payloads(item, self._max_piece)

    def _chunk(self, payload: bytes) -> Build:
        """Prepare the next CHUNK. It counts when it has been sent: `_sent`."""
        checksum, index, encode = fnv1a_64(payload), self._chunks, self._encoder.encode
        return lambda seq: encode(seq, index, payload, checksum)

    def _described(self, payload: bytes, meta: Mapping[str, Any]) -> Frame:
        """The same for a CHUNK with meta."""
        return Frame(
            FrameType.CHUNK,
            self._flow.rid,
            stream_id=self._head.stream_id,
            payload=payload,
            routing_id=self._flow.xid,
            chunk_index=self._chunks,
            checksum=fnv1a_64(payload),
            meta=meta,
        )

    def _end_frame(self) -> Frame:
        self._state = State.ENDED
        return Frame(
            FrameType.STREAM_END,
            self._flow.rid,
            stream_id=self._head.stream_id,
            routing_id=self._flow.xid,
            chunk_count=None if self._unbounded else self._chunks,
        )


def head_of(facts: OutputFacts, stream_id: str) -> Head:
    """Return the head of a declared output's stream."""
    output = None if facts.is_main else facts.media_urn
    return Head(stream_id, facts.media_urn, facts.stream_media, facts.is_sequence, output)
