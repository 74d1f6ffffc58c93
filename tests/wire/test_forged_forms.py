"""No body makes a later one read as something else, not even one that is made for it."""

from __future__ import annotations

import struct
from typing import Any

import cbor2
import pytest

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameType, inspect
from capdag.wire.chunks import forget_streams
from capdag.wire.forms import _ODD_FLOAT, _ODD_NUMBER, _ODD_TEXT, forget_forms

RID = bytes(range(16))
NUMBER, FLOAT, TEXT = struct.pack(">Q", _ODD_NUMBER), struct.pack(">d", _ODD_FLOAT), cbor2.dumps(_ODD_TEXT)


def body_of(kind: FrameType, **fields: Any) -> bytes:
    """Keys are written in the order given, after those that every frame has."""
    return cbor2.dumps({0: 6, 1: int(kind), 2: RID, 3: 1, **{int(key[1:]): value for key, value in fields.items()}})


def read(body: bytes) -> str:
    try:
        view = inspect(body)
    except RemoteProtocolError as error:
        return str(error)
    return repr((view.type, view.id, view.seq, view.xid, view.stream_id, sorted(view.fields.items())))


def forget() -> None:
    forget_forms()
    forget_streams()


_CHUNK = body_of(FrameType.CHUNK, k6=b"ab", k11="s", k14=0, k16=2**63)
_ROUTED = body_of(FrameType.CHUNK, k6=b"ab", k11="s", k13=1, k14=0, k16=2**63)

FORGED = {
    "a routing id that is not one": (
        body_of(FrameType.END, k9=True, k13=_ODD_NUMBER, k22=b"\x0d\x1b" + NUMBER),
        b"\x4a\x0d\x1b" + NUMBER, b"\x4a\x0d\x1b" + bytes(7) + b"\x07",
    ),
    "a stream that is not one": (
        body_of(FrameType.STREAM_END, k10="\x0b" + TEXT.decode(), k11=_ODD_TEXT), b"\x0b" + TEXT + b"\x0b",
        b"\x0b\x63abc\x0b",
    ),
    "a message that is not one": (
        body_of(FrameType.ERR, k5={"code": f"gmessage{TEXT.decode()}", "message": _ODD_TEXT}), TEXT + b"\x67",
        b"\x63abc\x67",
    ),
    "progress that is none": (
        body_of(FrameType.LOG, k5={"level": "a", "message": "b", "progress": _ODD_FLOAT, "z": b"\xfb" + FLOAT}),
        b"\x49\xfb" + FLOAT, b"\x49\xfb" + struct.pack(">d", 2.5),
    ),
    "a CHUNK with a null": (b"\xa9" + _CHUNK[1:] + b"\x14\xf6", b"\x14\xf6", b""),
    "a routed CHUNK with a null": (b"\xaa" + _ROUTED[1:] + b"\x14\xf6", b"\x14\xf6", b""),
}  # fmt: skip
"""A body, a part of it, and what stands there in the next one."""


@pytest.mark.parametrize(("first", "part", "other"), FORGED.values(), ids=FORGED)
def test_what_was_read_before_is_nothing_to_the_next(first: bytes, part: bytes, other: bytes) -> None:
    assert first.count(part) == 1
    second = first.replace(part, other)
    forget()
    cold = read(second)
    forget()
    inspect(first)
    inspect(first)
    assert read(second) == cold


def test_lists_and_maps_of_one_frame_are_not_those_of_the_next() -> None:
    forget()
    body = body_of(FrameType.END, k9=True, k22=[1], k23={"a": 1})
    for _ in range(3):
        fields = inspect(body).fields
        assert (fields[22], fields[23]) == ([1], {"a": 1})
        fields[22].append(2)
        fields[23]["b"] = 2
