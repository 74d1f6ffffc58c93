"""What no frame and no payload may hold, in the words of whoever tried to send it (protocol-spec/wire.md, Encoding)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set

MAX_DEPTH = 16
"""Deepest nesting of containers in a frame (map, meta, and what meta holds) and in a payload."""

_SCALARS = (str, bytes, bytearray, memoryview, bool, float, type(None))

_INSTEAD = {
    "datetime": "text, such as value.isoformat()",
    "date": "text, such as value.isoformat()",
    "time": "text, such as value.isoformat()",
    "timedelta": "a number, such as value.total_seconds()",
    "Decimal": "text, str(value), or a float",
    "Fraction": "text, str(value), or a float",
    "UUID": "text, str(value), or 16 bytes, value.bytes",
    "IPv4Address": "text, str(value)",
    "IPv6Address": "text, str(value)",
    "IPv4Network": "text, str(value)",
    "IPv6Network": "text, str(value)",
    "PurePath": "text, str(value)",
    "Pattern": "text, value.pattern",
    "Set": "a list, such as sorted(value)",
    "complex": "a list of two numbers",
    "Enum": "value.value",
    "CBORTag": "what it holds, value.value",
}
"""By the name of a class: importing all of these would cost a cartridge more time than its protocol takes."""

_PLAIN = "null, a bool, a number, text, bytes, or a list or map of these"


def explain_unsendable(value: object) -> str | None:
    """Return which part of a value no strict decoder takes, and what to send instead; None if there is none."""
    return _explain(value, "value", 1)


def _explain(value: object, path: str, depth: int) -> str | None:
    if isinstance(value, int):
        if -(2**64) <= value < 2**64:
            return None
        return f"{path} is an integer of {value.bit_length()} bits, and at most 64 can be sent: send text, str(value)"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"{path} is text with half a character at {error.start}: send valid Unicode"
    if isinstance(value, _SCALARS):
        return None
    inside: list[tuple[object, str]]
    if isinstance(value, Mapping):
        listed = next((key for key in value if isinstance(key, (tuple, Mapping))), None)
        if listed is not None:
            return f"a key of {path} is a {type(listed).__name__}: send text instead, or a list of pairs for the map"
        inside = [(key, f"a key of {path}") for key in value]
        inside += [(item, f"{path}[{key!r:.60}]") for key, item in value.items()]
    elif isinstance(value, (Sequence, deque)):
        inside = [(item, f"{path}[{at}]") for at, item in enumerate(value)]
    else:
        names = ["Set"] if isinstance(value, Set) else [kind.__name__ for kind in type(value).__mro__]
        instead = next((_INSTEAD[name] for name in names if name in _INSTEAD), _PLAIN)
        return f"{path} is a {type(value).__name__}, which the protocol has not: send {instead}"
    if depth > MAX_DEPTH:
        return f"{path} is nested deeper than {MAX_DEPTH} levels: send it flatter"
    return next(filter(None, (_explain(item, where, depth + 1) for item, where in inside)), None)
