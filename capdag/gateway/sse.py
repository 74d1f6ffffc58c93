"""JSON as the gateway sends it, and the events of a stream (client contract, OpenAI stream)."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_UNSAFE_LINES = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def dump(value: Any) -> bytes:
    """Return `value` as one line of JSON.

    The three characters that some clients take for the end of a line are written as escapes. In JSON they can stand
    inside strings only, so replacing their bytes is safe.
    """
    data = msgspec.json.encode(value)
    if not data.isascii():
        for raw, escaped in _UNSAFE_LINES:
            data = data.replace(raw, escaped)
    return data


def event(value: Any) -> bytes:
    """Return one event of a stream: one data line with one JSON object, one blank line."""
    return b"data: " + dump(value) + b"\n\n"
