"""Frames as data: types, keys and the `Frame` value (protocol-spec/wire.md, Frames).

`Frame` is a plain class with slots: a cartridge builds frames 50 ms after its process starts, and a struct library
would cost it more import time than the rest of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import Any

PROTOCOL_VERSION = 6

MessageId = bytes | int
"""A RID or XID: 16 bytes (a UUID) or an unsigned integer below 2**64."""


class FrameType(IntEnum):
    """The 15 live types; 2 is retired."""

    HELLO = 0
    REQ = 1
    CHUNK = 3
    END = 4
    LOG = 5
    ERR = 6
    HEARTBEAT = 7
    STREAM_START = 8
    STREAM_END = 9
    RELAY_NOTIFY = 10
    RELAY_STATE = 11
    CANCEL = 12
    CREDIT = 13
    CLOSE_STREAM = 14
    POLICY = 15


_T = FrameType

FLOW_TYPES = frozenset({_T.REQ, _T.CHUNK, _T.END, _T.LOG, _T.ERR, _T.STREAM_START, _T.STREAM_END})
"""Types that are numbered by seq and stopped by the terminal."""

TERMINAL_TYPES = frozenset({_T.END, _T.ERR})

FIELD_NAMES: Mapping[int, str] = {
    0: "version",
    1: "frame_type",
    2: "id",
    3: "seq",
    4: "content_type",
    5: "meta",
    6: "payload",
    7: "len",
    8: "offset",
    9: "eof",
    10: "cap",
    11: "stream_id",
    12: "media_urn",
    13: "routing_id",
    14: "chunk_index",
    15: "chunk_count",
    16: "checksum",
    17: "is_sequence",
    18: "force_kill",
    19: "credit",
    20: "unbounded",
    21: "output",
}
"""Map key of the wire to field name."""


class Frame:
    """One frame. Absent fields are None; `seq` 0 and `version` 6 are the defaults of the wire.

    `extra` holds unknown integer keys (kept and passed on); `raw` the body it was decoded from, if any.
    """

    __slots__ = (
        "cap",
        "checksum",
        "chunk_count",
        "chunk_index",
        "content_type",
        "credit",
        "eof",
        "extra",
        "force_kill",
        "frame_type",
        "id",
        "is_sequence",
        "len",
        "media_urn",
        "meta",
        "offset",
        "output",
        "payload",
        "raw",
        "routing_id",
        "seq",
        "stream_id",
        "unbounded",
        "version",
    )

    def __init__(
        self,
        frame_type: FrameType,
        id: MessageId,  # noqa: A002 - the protocol's own word for key 2
        seq: int = 0,
        *,
        version: int = PROTOCOL_VERSION,
        content_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
        payload: bytes | None = None,
        len: int | None = None,  # noqa: A002
        offset: int | None = None,
        eof: bool | None = None,
        cap: str | None = None,
        stream_id: str | None = None,
        media_urn: str | None = None,
        routing_id: MessageId | None = None,
        chunk_index: int | None = None,
        chunk_count: int | None = None,
        checksum: int | None = None,
        is_sequence: bool | None = None,
        force_kill: bool | None = None,
        credit: int | None = None,
        unbounded: bool | None = None,
        output: str | None = None,
        extra: Mapping[int, Any] | None = None,
        raw: bytes | None = None,
    ) -> None:
        self.frame_type = frame_type
        self.id = id
        self.seq = seq
        self.version = version
        self.content_type = content_type
        self.meta = meta
        self.payload = payload
        self.len = len
        self.offset = offset
        self.eof = eof
        self.cap = cap
        self.stream_id = stream_id
        self.media_urn = media_urn
        self.routing_id = routing_id
        self.chunk_index = chunk_index
        self.chunk_count = chunk_count
        self.checksum = checksum
        self.is_sequence = is_sequence
        self.force_kill = force_kill
        self.credit = credit
        self.unbounded = unbounded
        self.output = output
        self.extra = extra
        self.raw = raw

    def fields(self) -> dict[int, Any]:
        """Return the map of the wire: integer keys ascending, absent fields left out."""
        values = _FIELDS(self)
        found: dict[int, Any] = {
            key: value for key, value in zip(FIELD_NAMES, values, strict=True) if value is not None
        }
        found[1] = int(self.frame_type)
        if self.extra:
            found.update(sorted(self.extra.items()))
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self.fields() == other.fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = {FIELD_NAMES.get(key, str(key)): value for key, value in self.fields().items() if key > 2}
        return f"<{self.frame_type.name} {show_id(self.id)} {shown}>"


_FIELDS: Callable[[Frame], tuple[Any, ...]] = attrgetter(*FIELD_NAMES.values())


def show_id(message_id: MessageId | None) -> str:
    """Return an id as people read it: hex digits or the number."""
    return message_id.hex() if isinstance(message_id, bytes) else str(message_id)
