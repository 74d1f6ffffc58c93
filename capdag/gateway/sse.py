"""JSON as the gateway sends it, and the events of a stream (client contract, OpenAI stream)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_HALVES = re.compile("[\ud800-\udfff]")
_UNSAFE_LINES = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def dump(value: Any) -> bytes:
    """Return `value` as one line of JSON.

    The three characters that some clients take for the end of a line are written as escapes. In JSON they can stand
    inside strings only, so replacing their bytes is safe. Halves of surrogate pairs, as file names and logs may have
    them, become U+FFFD: no JSON carries them.
    """
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_mended(value))
    if not data.isascii():
        for raw, escaped in _UNSAFE_LINES:
            data = data.replace(raw, escaped)
    return data


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_mended(key): _mended(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mended(item) for item in value]
    return value


def event(value: Any) -> bytes:
    """Return one event of a stream: one data line with one JSON object, one blank line."""
    return b"data: " + dump(value) + b"\n\n"
