"""Inputs as typed values. What is wrong is said with the field, the value seen and the remedy.

The only module of the SDK that imports msgspec, and only when a handler asks for a type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from ._errors import CartridgeError

T = TypeVar("T")

Bad = Callable[[str, Mapping[str, object] | None], CartridgeError]
"""Makes the error of an input from what is wrong with it and what its detail holds."""

_LONGEST_VALUE = 60

_FAULT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_EXPECTED = re.compile(r"^Expected (?P<kind>.+?)(?:, got .*)?$", re.DOTALL)


def decode_text(bad: Bad, data: bytes) -> str:
    """Return UTF-8 as text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}: encode it as UTF-8"
        raise bad(fault, {"seen": error.start}) from None


def decode_json(bad: Bad, data: bytes, kind: type[T]) -> T:
    """Return JSON as a value of type `kind`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(bad, str(error), msgspec.json.decode(data), "") from None
    except msgspec.DecodeError as error:
        shown = data[:_LONGEST_VALUE].decode(errors="replace")
        raise bad(f"is not JSON: {error}; it begins {shown!r}: send one JSON value in UTF-8", None) from None


def convert(bad: Bad, number: int, value: Any, kind: type[T]) -> T:
    """Return value `number` of a stream as a value of type `kind`."""
    try:
        return msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(bad, str(error), value, f"[{number}]") from None


def _invalid(bad: Bad, message: str, value: Any, prefix: str) -> CartridgeError:
    found = _FAULT.match(message)
    assert found is not None
    what, path = found["what"], (found["path"] or "$").removeprefix("$")
    field = f"{prefix}{path}".removeprefix(".")
    seen, known = _at(value, path)
    expected = _EXPECTED.match(what)
    if expected is None:  # a field that is missing or unknown: the text names it, there is no value
        where = f" in {field}" if field else ""
        return bad(
            f"is refused: {what[:1].lower()}{what[1:]}{where}: correct the field and send it again", {"field": field}
        )
    shown = repr(seen)[:_LONGEST_VALUE] if known else "what was sent"
    remedy = expected["kind"].replace("`", "")
    detail: dict[str, object] = {"field": field}
    if isinstance(seen, (str, int, float, bool)):
        detail["seen"] = seen if not isinstance(seen, str) else seen[:_LONGEST_VALUE]
    return bad(f"is refused: {field or 'the value'} is {shown}: send {remedy}", detail)


def _at(value: Any, path: str) -> tuple[Any, bool]:
    """Return what is at a path of msgspec's, and whether the path leads there."""
    end = 0
    for step in _STEP.finditer(path):
        end = step.end()
        try:
            value = value[step[1]] if step[1] is not None else value[int(step[2])]
        except (KeyError, IndexError, TypeError):
            return None, False
    return value, end == len(path)
