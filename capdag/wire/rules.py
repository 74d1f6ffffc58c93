"""What every key of a frame must hold, and what each type needs (protocol-spec/wire.md, Encoding)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from capdag.errors import RemoteProtocolError

from .cbor import SCALARS, decode_body
from .flaws import find_flaw, shown_path
from .frame import FIELD_NAMES, FRAME_TYPES, PROTOCOL_VERSION, FixedMeta, FrameType, show_value
from .policy import read_policy
from .unsendable import MAX_DEPTH

_MAX_UINT = 2**64 - 1


def read_fields(body: bytes) -> dict[int, Any]:
    """Decode a body and hold it to every rule. Raises RemoteProtocolError naming key, frame type and value."""
    try:
        fields = decode_body(body)
    except RemoteProtocolError as error:
        raise _placed(error, body) from None
    if type(fields) is not dict:
        raise RemoteProtocolError(f"a frame is a CBOR map, not {type(fields).__name__}")
    check_fields(fields)
    return fields


def _placed(error: RemoteProtocolError, body: bytes) -> RemoteProtocolError:
    """Return the error for a body that could not be decoded, by the key under which it is wrong."""
    flaw = find_flaw(body)
    if flaw is None:
        return error
    if body[:1] < b"\xa0" or body[:1] > b"\xbb":
        return RemoteProtocolError(f"not one strict CBOR item: {flaw}")  # no map, which has keys
    frame = _type_of(flaw.before) if 1 in flaw.before else "a frame"
    if flaw.path:
        key, *inside = flaw.path
        frame = f"key {show_value(key)} ({FIELD_NAMES.get(key, 'unknown')}) of {frame}"  # type: ignore[call-overload]
        frame += f", at {shown_path(inside)}," if inside else ""
    return RemoteProtocolError(f"not one strict CBOR item: {frame} has {flaw.what}, at offset {flaw.offset}")


def check_fields(fields: dict[Any, Any]) -> None:
    """Hold a map to every rule, and take out nulls that read as absent.

    Raises RemoteProtocolError naming key, frame type and value.
    """
    for key, value in fields.items():
        _check_field(fields, key, value)
    for key in (0, 1, 2):
        if key not in fields:
            raise RemoteProtocolError(f"{_type_of(fields)} needs key {key} ({FIELD_NAMES[key]})")
    nulls = [key for key, value in fields.items() if value is None and key in _NULLABLE]
    for key in nulls:
        del fields[key]
    _check_type(fields, FRAME_TYPES[fields[1]])


def _check_field(fields: dict[Any, Any], key: object, value: object) -> None:
    if type(key) is not int:
        shown = f"{show_value(key)} of type {type(key).__name__}"
        raise RemoteProtocolError(f"{_type_of(fields)} has the key {shown}: keys are integers")
    rule = _RULES.get(key)
    if rule is None:
        if not _plain(value, _ROOM + 1):
            raise RemoteProtocolError(
                f"key {key} of {_type_of(fields)} holds {type(value).__name__} {show_value(value)}, which no frame may"
            )
    elif not (rule[0](value) or (value is None and key in _NULLABLE)):
        raise RemoteProtocolError(
            f"key {key} ({FIELD_NAMES[key]}) of {_type_of(fields)} must be "
            f"{rule[1]}, not {type(value).__name__} {show_value(value)}"
        )


def _type_of(fields: Mapping[Any, Any]) -> str:
    return f"frame type {show_value(fields.get(1))}"


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


_TEXT = frozenset({str})
_ROOM = MAX_DEPTH - 2
"""Levels of nesting inside meta: the frame's map and meta are the first two."""


def is_flat(values: Iterable[object]) -> bool:
    """True if no value is a container. Says nothing of the size of integers."""
    return SCALARS.issuperset(map(type, values))


def is_meta(value: object) -> bool:
    """True for what key 5 may hold."""
    if type(value) is not dict or not _TEXT.issuperset(map(type, value)):
        return type(value) is FixedMeta
    return _FLAT.issuperset(map(type, value.values())) or all(_plain(item, _ROOM) for item in value.values())


_FLAT = SCALARS - {int}


def _plain(value: object, room: int) -> bool:
    """True for JSON-like values and bytes, nested in at most `room` levels."""
    kind = type(value)
    if kind in SCALARS:
        return kind is not int or -_MAX_UINT - 1 <= value <= _MAX_UINT  # type: ignore[operator]
    if kind not in (list, dict) or not room:
        return False
    inside = value if kind is list else (*value, *value.values())  # type: ignore[misc,attr-defined]
    return all(_plain(item, room - 1) for item in inside)  # type: ignore[attr-defined]


_RULES: Mapping[int, tuple[Callable[[object], bool], str]] = {
    0: (_version, f"the integer {PROTOCOL_VERSION}"),
    1: (_frame_type, "a live frame type (0, 1, 3 to 15)"),
    2: (_message_id, "16 bytes or an unsigned 64-bit integer"),
    3: (_uint, "an unsigned 64-bit integer"),
    4: (_text, "text"),
    5: (is_meta, f"a map with text keys and plain values, nested at most {_ROOM} deep"),
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
