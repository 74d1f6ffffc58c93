"""Frames as data: types, keys and the `Frame` value (protocol-spec/wire.md, Frames).

`Frame` is a map of the wire's keys behind named attributes: decoding and encoding hand that map over as it is. A
cartridge builds frames 50 ms after its process starts, and a struct library would cost it more import time than the
rest of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Generic, NoReturn, Self, TypeVar, overload

from capdag.errors import LocalProtocolError

from .cbor import encode_plain

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


FRAME_TYPES: Mapping[int, FrameType] = {int(kind): kind for kind in FrameType}

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

V = TypeVar("V")

_new = object.__new__


class FixedMeta(dict[str, Any]):
    """The meta of many frames, which never changes. `piece` is its pair in a body, key 5 included."""

    __slots__ = ("piece",)

    def __init__(self, meta: Mapping[str, Any]) -> None:
        super().__init__(meta)
        self.piece = b"\x05" + encode_plain(dict(meta))

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a FixedMeta is shared by frames: give the frame a dict of its own")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse


class _Field(Generic[V]):
    """An attribute of a frame that is one key of its map. None where the key is absent; setting None takes it out."""

    __slots__ = ("_key",)

    def __init__(self, key: int) -> None:
        self._key = key

    @overload
    def __get__(self, frame: None, owner: type[Frame]) -> Self: ...
    @overload
    def __get__(self, frame: Frame, owner: type[Frame]) -> V | None: ...
    def __get__(self, frame: Frame | None, owner: type[Frame]) -> Self | V | None:
        return self if frame is None else frame._fields.get(self._key)

    def __set__(self, frame: Frame, value: V | None) -> None:
        frame._put(self._key, value)


class _Needed(Generic[V]):
    """An attribute that every frame has."""

    __slots__ = ("_default", "_key")

    def __init__(self, key: int, default: Any = None) -> None:
        self._key = key
        self._default = default

    @overload
    def __get__(self, frame: None, owner: type[Frame]) -> Self: ...
    @overload
    def __get__(self, frame: Frame, owner: type[Frame]) -> V: ...
    def __get__(self, frame: Frame | None, owner: type[Frame]) -> Self | V:
        if frame is None:
            return self
        value: V = frame._fields.get(self._key, self._default)
        return value

    def __set__(self, frame: Frame, value: V) -> None:
        frame._put(self._key, value)


class Frame:
    """One frame. Absent fields are None; `seq` 0 and `version` 6 are the defaults of the wire.

    `extra` holds unknown integer keys (kept and passed on; raises LocalProtocolError for others); `raw` is the body the
    frame was decoded from, if any.
    """

    __slots__ = ("_fields", "raw")

    version: _Needed[int] = _Needed(0)
    id: _Needed[MessageId] = _Needed(2)
    seq: _Needed[int] = _Needed(3, 0)
    content_type: _Field[str] = _Field(4)
    meta: _Field[Mapping[str, Any]] = _Field(5)
    payload: _Field[bytes] = _Field(6)
    len: _Field[int] = _Field(7)
    offset: _Field[int] = _Field(8)
    eof: _Field[bool] = _Field(9)
    cap: _Field[str] = _Field(10)
    stream_id: _Field[str] = _Field(11)
    media_urn: _Field[str] = _Field(12)
    routing_id: _Field[MessageId] = _Field(13)
    chunk_index: _Field[int] = _Field(14)
    chunk_count: _Field[int] = _Field(15)
    checksum: _Field[int] = _Field(16)
    is_sequence: _Field[bool] = _Field(17)
    force_kill: _Field[bool] = _Field(18)
    credit: _Field[int] = _Field(19)
    unbounded: _Field[bool] = _Field(20)
    output: _Field[str] = _Field(21)

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
        self.raw = raw
        values = (
            version, int(frame_type), id, seq, content_type, meta, payload, len, offset, eof, cap, stream_id, media_urn,
            routing_id, chunk_index, chunk_count, checksum, is_sequence, force_kill, credit, unbounded, output,
        )  # fmt: skip
        self._fields: dict[int, Any] = {key: value for key, value in enumerate(values) if value is not None}
        if extra:
            self._add(extra)

    def _add(self, extra: Mapping[int, Any]) -> None:
        for key in extra:
            if type(key) is not int or key in FIELD_NAMES:
                raise LocalProtocolError(f"extra holds unknown integer keys, not {key!r}")
        self._fields = dict(sorted({**self._fields, **extra}.items()))

    @staticmethod
    def of(fields: dict[int, Any], raw: bytes | None = None) -> Frame:
        """Make a frame of a map that has been checked. The map is shared, and never changed."""
        frame = _new(Frame)
        frame._fields = fields
        frame.raw = raw
        return frame

    def _put(self, key: int, value: Any) -> None:
        """Change the map, which others may hold, by replacing it."""
        fields = {**self._fields, key: value}
        if value is None:
            del fields[key]
        elif key not in self._fields:
            fields = dict(sorted(fields.items()))
        self._fields = fields

    @property
    def frame_type(self) -> FrameType:
        """The type."""
        return FRAME_TYPES[self._fields[1]]

    @property
    def extra(self) -> Mapping[int, Any] | None:
        """Unknown integer keys, None if there are none."""
        return {key: value for key, value in self._fields.items() if key not in FIELD_NAMES} or None

    def shared_fields(self) -> dict[int, Any]:
        """Return the frame's own map, in whatever order it came. Not to be changed."""
        return self._fields

    def fields(self) -> dict[int, Any]:
        """Return the map of the wire: integer keys ascending, absent fields left out."""
        return dict(sorted(self._fields.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self._fields == other._fields

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = {FIELD_NAMES.get(key, str(key)): value for key, value in self._fields.items() if key not in (0, 1, 2)}
        return f"<{self.frame_type.name} {show_id(self.id)} {shown}>"


_SHOWN = 160


def show_value(value: object) -> str:
    """Return a value that somebody sent as an error quotes it: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def show_id(message_id: MessageId | None) -> str:
    """Return an id as people read it: hex digits or the number."""
    return message_id.hex() if isinstance(message_id, bytes) else str(message_id)
