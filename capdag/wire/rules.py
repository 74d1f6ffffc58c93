"""What every key of a frame must hold, and what each type needs (protocol-spec/wire.md, Encoding)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError

from .frame import FIELD_NAMES, FRAME_TYPES, PROTOCOL_VERSION, FrameType
from .policy import read_policy

_MAX_UINT = 2**64 - 1


class Shape(NamedTuple):
    """What is left to look at in a frame whose type, keys and value types have passed every rule before."""

    integers: Callable[[Mapping[int, Any]], tuple[int, ...]]
    rid_is_bytes: bool
    xid_is_bytes: bool
    has_meta: bool
    is_ordered: bool


_SHAPES: dict[tuple[object, ...], Shape] = {}
_MAX_SHAPES = 512  # a stranger that invents shapes pays for full checks, not with our memory


def known_shape(fields: dict[Any, Any]) -> Shape | None:
    """Return the shape of a good frame that a link carries all the time; None says nothing yet.

    True and False among the keys pass for 1 and 0 here: the caller knows that the frame begins with the integers.
    """
    try:
        shape = _SHAPES[(fields[1], bytes(fields), *map(type, fields.values()))]
    except (KeyError, TypeError, ValueError):
        return None  # keys that are no integers of a byte make TypeError and ValueError
    if (
        fields[0] != PROTOCOL_VERSION
        or min(shape.integers(fields)) < 0
        or (shape.rid_is_bytes and len(fields[2]) != 16)
        or (shape.xid_is_bytes and len(fields[13]) != 16)
        or (shape.has_meta and not _meta(fields[5]))
    ):
        return None
    return shape


def check_fields(fields: dict[Any, Any]) -> Shape:
    """Hold a map to every rule, take out nulls that read as absent, and return its shape, which is remembered.

    Raises RemoteProtocolError naming key, frame type and value.
    """
    for key, value in fields.items():
        _check_field(fields, key, value)
    for key in (0, 1, 2):
        if key not in fields:
            raise RemoteProtocolError(f"key {key} ({FIELD_NAMES[key]}) is missing")
    nulls = [key for key, value in fields.items() if value is None and key in _NULLABLE]
    for key in nulls:
        del fields[key]
    _check_type(fields, FRAME_TYPES[fields[1]])
    return _remember(fields)


def _check_field(fields: dict[Any, Any], key: object, value: object) -> None:
    if type(key) is not int:
        raise RemoteProtocolError(f"frame keys are integers, not {type(key).__name__} {_short(key)}")
    rule = _RULES.get(key)
    if rule is None:
        if not _plain(value):
            raise RemoteProtocolError(f"key {key} holds {type(value).__name__} {_short(value)}, which no frame may")
    elif not (rule[0](value) or (value is None and key in _NULLABLE)):
        raise RemoteProtocolError(
            f"key {key} ({FIELD_NAMES[key]}) of frame type {_short(fields.get(1))} must be "
            f"{rule[1]}, not {type(value).__name__} {_short(value)}"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _check_type(fields: dict[int, Any], kind: FrameType) -> None:
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


def _remember(fields: dict[int, Any]) -> Shape:
    known = [key for key, value in fields.items() if type(value) is int and key in FIELD_NAMES]
    shape = Shape(
        itemgetter(*known), type(fields[2]) is bytes, type(fields.get(13)) is bytes, 5 in fields,
        list(fields) == sorted(fields),
    )  # fmt: skip
    # A policy's word, and what unknown keys hold, is looked at each time.
    if fields[1] != FrameType.POLICY and fields.keys() <= FIELD_NAMES.keys() and len(_SHAPES) < _MAX_SHAPES:
        _SHAPES[(fields[1], bytes(fields), *map(type, fields.values()))] = shape
    return shape


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


def _frame_type(value: object) -> bool:
    return type(value) is int and value in FRAME_TYPES


_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


_FLAT = _PLAIN - {int}


def _meta(value: object) -> bool:
    if type(value) is not dict or not {str}.issuperset(map(type, value)):
        return False
    return _FLAT.issuperset(map(type, value.values())) or all(map(_plain, value.values()))


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
_NULLABLE = frozenset(_RULES) - {0, 1, 2, 13, 21}
"""Keys where null is read as absent. A null 14, 16 or 19 is then missing where its type needs it."""
