"""Bytes to frames and back, strictly (protocol-spec/wire.md, Encoding).

`inspect` checks a body once and keeps its bytes for forwarding; `decode_frame` builds a `Frame` for endpoints;
`encode_frame` writes what the golden vectors show.
"""

from __future__ import annotations

from typing import Any

from capdag.errors import LocalProtocolError, RemoteProtocolError

from .cbor import decode_value, encode_value
from .chunks import read_known, remember, write_plain
from .frame import FRAME_TYPES, PROTOCOL_VERSION, Frame, FrameType
from .rules import check_fields, known_shape
from .view import FrameView

_START = bytes((0, PROTOCOL_VERSION, 1))
"""How a map in the usual order begins, after its head. Both keys are integers there, so that no key of the map can be
True or False, which are equal to them."""

_MAX_UINT = 2**64 - 1


def inspect(body: bytes) -> FrameView:
    """Check a body against every rule of the decoder and return its header.

    Raises RemoteProtocolError naming key, frame type and value.
    """
    known = read_known(body)
    if known is not None:
        return known
    fields = decode_value(body)
    if type(fields) is not dict:
        raise RemoteProtocolError(f"a frame is a CBOR map, not {type(fields).__name__}")
    if not body.startswith(_START, 2 if body[0] == 0xB8 else 1) or known_shape(fields) is None:
        check_fields(fields)
    view = _view(body, fields)
    if view.type is FrameType.CHUNK:
        remember(view)
    return view


def _view(body: bytes, fields: dict[int, Any]) -> FrameView:
    kind = FRAME_TYPES[fields[1]]
    return FrameView(body, kind, fields[2], fields.get(3, 0), fields.get(13), fields.get(11), fields)


def decode_frame(body: bytes) -> Frame:
    """Decode one frame body. Raises RemoteProtocolError naming key, frame type and value."""
    return inspect(body).frame()


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame: definite map, integer keys ascending, shortest integers. Raises LocalProtocolError."""
    return _encoded(frame)[0]


def view_of(frame: Frame) -> FrameView:
    """Encode a frame of our own and return it as links carry it.

    Raises LocalProtocolError for a frame that our own decoder would refuse.
    """
    return _view(*_encoded(frame))


def _encoded(frame: Frame) -> tuple[bytes, dict[int, Any]]:
    fields = frame.shared_fields()
    body = write_plain(fields)
    if body is not None:
        return body, fields
    fields = _checked(fields)
    return encode_value(fields), fields


def _checked(fields: dict[int, Any]) -> dict[int, Any]:
    """Return the map of a frame of ours, its keys in order, if it keeps every rule."""
    shape = known_shape(fields)
    if shape is None or max(shape.integers(fields)) > _MAX_UINT:
        fields = dict(fields)
        try:
            shape = check_fields(fields)
        except RemoteProtocolError as error:
            raise LocalProtocolError(str(error)) from None
    return fields if shape.is_ordered else dict(sorted(fields.items()))


def with_routing_id(view: FrameView, xid: int) -> FrameView:
    """Return the frame with key 13 set: a splice of the original bytes where the map head allows it.

    The peer accepts keys in any order, so the pair goes to the end and nothing else moves.
    """
    head = view.body[0]
    if view.xid is None and 0xA0 <= head < 0xB7:
        return view.routed(bytes((head + 1,)) + view.body[1:] + b"\x0d" + encode_value(xid), xid)
    fields = dict(sorted({**view.fields, 13: xid}.items()))
    return _view(encode_value(fields), fields)
