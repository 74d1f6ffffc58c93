"""Bytes to frames and back, strictly (protocol-spec/wire.md, Encoding).

`inspect` checks a body once and keeps its bytes for forwarding; `decode_frame` builds a `Frame` for endpoints;
`encode_frame` writes what the golden vectors show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import cbor2

from capdag.errors import LocalProtocolError, RemoteProtocolError

from .frame import FIELD_NAMES, PROTOCOL_VERSION, Frame, FrameType, MessageId, show_id
from .policy import read_policy

MAX_DEPTH = 16
"""Deepest nesting of containers in a frame: map, meta, and what meta holds."""

_MAX_UINT = 2**64 - 1
_TAGS = (*range(64), 100, 256, 258, 260, 261, 1004, 43000, 55799)


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("CBOR tags are not part of the protocol")


_STRICT: dict[str, Any] = {
    "allow_indefinite": False,
    "allow_duplicate_keys": False,
    "max_depth": MAX_DEPTH + 1,
    "tag_hook": _refuse_tag,
    "semantic_decoders": dict.fromkeys(_TAGS, _refuse_tag),
}

# cbor2.loads ignores what follows the first item. Decoding [body, nonce] in one call tells: had the body trailing
# bytes, the second item would not be a nonce that the sender cannot know. It costs one copy, half of asking a
# decoder object for its position.
_NONCE = os.urandom(16)
_PAIR, _TAIL = b"\x82", b"\x50" + _NONCE


def decode_value(data: bytes) -> Any:
    """Decode exactly one CBOR item under the strict rules; raises RemoteProtocolError."""
    try:
        value, nonce = cbor2.loads(b"".join((_PAIR, data, _TAIL)), **_STRICT)
    except Exception as error:  # noqa: BLE001 - cbor2 raises many kinds for bad input; all mean the same here
        raise RemoteProtocolError(f"not one strict CBOR item: {_reason(error)}") from None
    if nonce != _NONCE:
        raise RemoteProtocolError("bytes follow the CBOR item: a body is exactly one item")
    return value


def encode_value(value: Any) -> bytes:
    """Encode one value; raises LocalProtocolError for what CBOR cannot hold."""
    try:
        return cbor2.dumps(value)
    except Exception as error:  # noqa: BLE001 - same: the encoder's kinds are many, the meaning is one
        raise LocalProtocolError(f"cannot be encoded as CBOR: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


class FrameView:
    """A checked header over the original bytes: what routers look at and links carry.

    `body` is the encoded frame without its length prefix, `fields` the decoded map (integer keys).
    """

    __slots__ = ("body", "fields", "id", "seq", "stream_id", "type", "xid")

    def __init__(self, body: bytes, fields: dict[int, Any]) -> None:
        self.body = body
        self.fields = fields
        self.type: FrameType = fields[1]
        self.id: MessageId = fields[2]
        self.seq: int = fields.get(3, 0)
        self.xid: MessageId | None = fields.get(13)
        self.stream_id: str | None = fields.get(11)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The meta map, empty if absent."""
        return self.fields.get(5) or {}

    @property
    def payload_size(self) -> int:
        """Payload bytes (0 if absent)."""
        return len(self.fields.get(6) or b"")

    def frame(self) -> Frame:
        """Build the `Frame`, without a second decode."""
        return _frame_of(self.body, self.fields)

    def __repr__(self) -> str:
        return f"<{self.type.name} rid={show_id(self.id)} xid={show_id(self.xid)} seq={self.seq} {len(self.body)} B>"


def inspect(body: bytes) -> FrameView:
    """Check a body against every rule of the decoder and return its header.

    Raises RemoteProtocolError naming key, frame type and value.
    """
    fields = decode_value(body)
    if type(fields) is not dict:
        raise RemoteProtocolError(f"a frame is a CBOR map, not {type(fields).__name__}")
    if not _passes_as_known_shape(fields):
        _check_fields(fields)
        _check_required(fields)
    fields[1] = _TYPES[fields[1]]
    return FrameView(body, fields)


class _Shape(NamedTuple):
    """What is left to look at in a frame whose type, keys and value types have passed every rule before."""

    integers: Callable[[Mapping[int, Any]], tuple[int, ...]]
    rid_is_bytes: bool
    xid_is_bytes: bool
    has_meta: bool


_SHAPES: dict[tuple[object, ...], _Shape] = {}
_MAX_SHAPES = 512  # a stranger that invents shapes pays for full checks, not with our memory


def _passes_as_known_shape(fields: dict[Any, Any]) -> bool:
    """True for a good frame of a shape that a link carries all the time; False says nothing yet."""
    try:
        # Key types belong to the shape: True and 1.0 are equal to 1, and not allowed.
        shape = _SHAPES.get((fields[1], *fields, *map(type, fields), *map(type, fields.values())))
    except (KeyError, TypeError):
        return False
    return (
        shape is not None
        and fields[0] == PROTOCOL_VERSION
        and min(shape.integers(fields)) >= 0
        and (not shape.rid_is_bytes or len(fields[2]) == 16)
        and (not shape.xid_is_bytes or len(fields[13]) == 16)
        and (not shape.has_meta or _meta(fields[5]))
    )


def _remember_shape(fields: dict[int, Any]) -> None:
    kinds = [type(value) for value in fields.values()]
    if fields[1] == FrameType.POLICY or type(None) in kinds or len(_SHAPES) >= _MAX_SHAPES:
        return  # a policy's word and a null are looked at each time
    integers = [key for key, kind in zip(fields, kinds, strict=True) if kind is int and key in FIELD_NAMES]
    _SHAPES[(fields[1], *fields, *map(type, fields), *kinds)] = _Shape(
        itemgetter(*integers), type(fields[2]) is bytes, type(fields.get(13)) is bytes, 5 in fields
    )


def _check_fields(fields: dict[Any, Any]) -> None:
    for key, value in fields.items():
        if type(key) is not int:
            raise RemoteProtocolError(f"frame keys are integers, not {type(key).__name__} {_short(key)}")
        check = _CHECKS.get(key)
        if check is None or check(value) or (value is None and key in _NULLABLE):
            continue
        raise RemoteProtocolError(
            f"key {key} ({FIELD_NAMES[key]}) of frame type {_short(fields.get(1))} must be "
            f"{_EXPECTED[key]}, not {type(value).__name__} {_short(value)}"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _check_required(fields: dict[int, Any]) -> None:
    for key in (0, 1, 2):
        if key not in fields:
            raise RemoteProtocolError(f"key {key} ({FIELD_NAMES[key]}) is missing")
    kind = _TYPES[fields[1]]
    if None in fields.values():
        for key in [key for key, value in fields.items() if value is None and key in _NULLABLE]:
            del fields[key]
    if kind is FrameType.CHUNK:
        for key in (14, 16):
            if key not in fields:
                raise RemoteProtocolError(f"CHUNK needs key {key} ({FIELD_NAMES[key]})")
    elif kind is FrameType.CREDIT and 19 not in fields:
        raise RemoteProtocolError("CREDIT needs key 19 (credit)")
    elif kind is FrameType.POLICY:
        read_policy(fields.get(5) or {})
    if 21 in fields and kind is not FrameType.STREAM_START:
        raise RemoteProtocolError(f"key 21 (output) belongs to STREAM_START, not {kind.name}")
    _remember_shape(fields)


def _uint(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_UINT


def _message_id(value: object) -> bool:
    return (type(value) is bytes and len(value) == 16) or _uint(value)


def _text(value: object) -> bool:
    return type(value) is str


def _bytes(value: object) -> bool:
    return type(value) is bytes


def _bool(value: object) -> bool:
    return type(value) is bool


def _version(value: object) -> bool:
    return type(value) is int and value == PROTOCOL_VERSION


_TYPES = {int(kind): kind for kind in FrameType}


def _frame_type(value: object) -> bool:
    return type(value) is int and value in _TYPES


_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


def _meta(value: object) -> bool:
    return type(value) is dict and all(type(key) is str for key in value) and all(map(_plain, value.values()))


def _plain(value: object) -> bool:
    """True for JSON-like values and bytes, to any depth the decoder let through."""
    kind = type(value)
    if kind in _PLAIN:
        return kind is not int or -_MAX_UINT - 1 <= value <= _MAX_UINT  # type: ignore[operator]
    if kind is list:
        return all(map(_plain, value))  # type: ignore[call-overload]
    return kind is dict and all(map(_plain, value)) and all(map(_plain, value.values()))  # type: ignore[call-overload,attr-defined]


_RULES: Mapping[int, tuple[Callable[[object], bool], str]] = {
    0: (_version, f"the integer {PROTOCOL_VERSION}"),
    1: (_frame_type, "a live frame type (0, 1, 3 to 15)"),
    2: (_message_id, "16 bytes or an unsigned 64-bit integer"),
    3: (_uint, "an unsigned 64-bit integer"),
    4: (_text, "text"),
    5: (_meta, "a map with text keys and plain values"),
    6: (_bytes, "bytes"),
    7: (_uint, "an unsigned 64-bit integer"),
    8: (_uint, "an unsigned 64-bit integer"),
    9: (_bool, "a bool"),
    10: (_text, "text"),
    11: (_text, "text"),
    12: (_text, "text"),
    13: (_message_id, "16 bytes or an unsigned 64-bit integer"),
    14: (_uint, "an unsigned 64-bit integer"),
    15: (_uint, "an unsigned 64-bit integer"),
    16: (_uint, "an unsigned 64-bit integer"),
    17: (_bool, "a bool"),
    18: (_bool, "a bool"),
    19: (_uint, "an unsigned 64-bit integer"),
    20: (_bool, "a bool"),
    21: (_text, "text"),
}
_CHECKS = {key: rule[0] for key, rule in _RULES.items()}
_EXPECTED = {key: rule[1] for key, rule in _RULES.items()}
_NULLABLE = frozenset(_RULES) - {0, 1, 2, 13, 21}
"""Keys where null is read as absent. A null 14, 16 or 19 is then missing where its type needs it."""


def _frame_of(body: bytes, fields: Mapping[int, Any]) -> Frame:
    named: dict[str, Any] = {}
    extra: dict[int, Any] = {}
    for key, value in fields.items():
        name = FIELD_NAMES.get(key)
        if name is None:
            extra[key] = value
        else:
            named[name] = value
    return Frame(**named, extra=extra or None, raw=body)


def decode_frame(body: bytes) -> Frame:
    """Decode one frame body. Raises RemoteProtocolError naming key, frame type and value."""
    return inspect(body).frame()


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame: definite map, integer keys ascending, shortest integers. Raises LocalProtocolError."""
    return view_of(frame).body


def view_of(frame: Frame) -> FrameView:
    """Encode a frame of our own and return it as links carry it.

    Raises LocalProtocolError for a frame that our own decoder would refuse.
    """
    fields = frame.fields()
    if not _passes_as_known_shape(fields):
        try:
            _check_fields(fields)
            _check_required(fields)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from None
    body = encode_value(fields)
    fields[1] = frame.frame_type
    return FrameView(body, fields)


def with_routing_id(view: FrameView, xid: int) -> FrameView:
    """Return the frame with key 13 set: a splice of the original bytes where the map head allows it.

    The peer accepts keys in any order, so the pair goes to the end and nothing else moves.
    """
    fields = {**view.fields, 13: xid}
    head = view.body[0]
    if view.xid is None and 0xA0 <= head < 0xB7:
        return FrameView(bytes((head + 1,)) + view.body[1:] + b"\x0d" + cbor2.dumps(xid), fields)
    return FrameView(cbor2.dumps(dict(sorted(fields.items()))), fields)
