"""What a trace keeps of contents: sizes and shapes, no data (protocol-spec/traces.md, Masking).

A masked frame is a valid frame of the same size, or nearly: it can be shown, checked and replayed like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameType, FrameView, decode_value, encode_value, fnv1a_64, view_of

_SECRET = re.compile(r"token|secret|passw|api[-_]?key|authori[sz]ation|credential|cookie", re.IGNORECASE)
_HIDDEN = "***"


def mask(view: FrameView) -> FrameView:
    """Return the frame without contents: those of a CHUNK become fillers of their type and length, with a checksum
    that is right for them; values of meta whose keys speak of secrets become `***`, in every frame.

    What LOG and ERR say is kept: they are what a trace is read for.
    """
    meta = view.meta
    masked = _fill(meta) if view.type is FrameType.CHUNK else hide_secrets(meta)
    if masked == meta and not view.payload_size:
        return view
    frame = view.frame()
    if meta:
        frame.meta = masked
    if view.payload_size:
        frame.payload = _fill_payload(frame.payload or b"")
        if frame.checksum is not None:
            frame.checksum = fnv1a_64(frame.payload)
    return view_of(frame)


def _fill_payload(payload: bytes) -> bytes:
    """Return a payload of the same shape. A piece of an item that goes over several CHUNKs becomes zeros."""
    try:
        return encode_value(_fill(decode_value(payload)))
    except RemoteProtocolError:
        return bytes(len(payload))


def _fill(value: Any) -> Any:
    """Return a value of the same type and length. Keys stay: they are part of the protocol, not of the contents."""
    if isinstance(value, str):
        return "x" * len(value.encode())
    if isinstance(value, bytes):
        return b"x" * len(value)
    if isinstance(value, (list, tuple)):
        return [_fill(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _fill(item) for key, item in value.items()}
    return value


def hide_secrets(value: Any) -> Any:
    """Return the value with `***` under every key that speaks of secrets."""
    if isinstance(value, Mapping):
        return {
            key: _HIDDEN if isinstance(key, str) and _SECRET.search(key) else hide_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [hide_secrets(item) for item in value]
    return value
