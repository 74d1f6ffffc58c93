"""Bytes to frames and back, strictly (protocol-spec/wire.md, Encoding).

`inspect` checks a body once and keeps its bytes for forwarding; `decode_frame` builds a `Frame` for endpoints;
`encode_frame` writes what the golden vectors show.
"""

from __future__ import annotations

from typing import Any

from capdag.errors import LocalProtocolError, RemoteProtocolError

from .cbor import encode_plain
from .chunks import read_known, remember, write_plain
from .forms import HEADS, learn_form, read_form
from .frame import FRAME_TYPES, Frame, FrameType
from .plans import learn_written, write_form
from .rules import check_fields, is_flat, read_fields
from .unsendable import explain_unsendable
from .view import MOST_KEPT, FrameView, frame_view

_CHUNK = int(FrameType.CHUNK)


def inspect(body: bytes) -> FrameView:
    """Check a body against every rule of the decoder and return its header.

    Raises RemoteProtocolError naming key, frame type and value, LocalProtocolError for what is not of type bytes: what
    is kept of a body must not change with it.
    """
    if type(body) is not bytes:
        raise LocalProtocolError(f"a body is bytes, not {type(body).__name__}: give bytes(body)")
    head = HEADS.get(body[:7])
    known = read_known(body) if head is None else read_form(body, head)
    if type(known) is FrameView:
        return known
    fields = read_fields(body)
    view = _lean_view(body, fields)
    if isinstance(known, tuple):
        learn_form(known, fields)
    elif view.type is FrameType.CHUNK:
        remember(view, fields)
    return view


def _lean_view(body: bytes, fields: dict[int, Any]) -> FrameView:
    """Make the view of what somebody sent. It keeps the map if that is small, and holds no lists in lists, which take a
    hundred times their bytes."""
    view = _view(body, fields)
    small = len(body) - len(fields.get(6) or b"") <= MOST_KEPT
    if not small or not is_flat({**fields, **fields.get(5, {}), 5: None}.values()):
        view.forget()
    return view


def _view(body: bytes, fields: dict[int, Any]) -> FrameView:
    return frame_view(body, FRAME_TYPES[fields[1]], fields[2], fields.get(3, 0), fields.get(13), fields.get(11), fields)


def decode_frame(body: bytes) -> Frame:
    """Decode one frame body. Raises as `inspect` does."""
    return inspect(body).frame()


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame: definite map, integer keys ascending, shortest integers. Raises LocalProtocolError."""
    fields = frame.shared_fields()
    body = write_plain(fields) if fields[1] == _CHUNK else write_form(fields)
    return _check_and_encode(fields)[0] if body is None else body


def view_of(frame: Frame) -> FrameView:
    """Encode a frame of our own and return it as links carry it.

    Raises LocalProtocolError for a frame that our own decoder would refuse.
    """
    fields = frame.shared_fields()
    body = write_plain(fields) if fields[1] == _CHUNK else write_form(fields)
    return _view(*_check_and_encode(fields)) if body is None else _view(body, fields)


def _check_and_encode(fields: dict[int, Any]) -> tuple[bytes, dict[int, Any]]:
    """Return the body of a frame of ours and its map, in order, if it keeps every rule."""
    fields = dict(fields)
    try:
        check_fields(fields)
    except RemoteProtocolError as error:
        why = explain_unsendable(fields.get(5))
        raise LocalProtocolError(f"{error}; in meta, {why}" if why else str(error)) from None
    fields = dict(sorted(fields.items()))
    body = encode_plain(fields)
    learn_written(fields, body)
    return body, fields


def with_routing_id(view: FrameView, xid: int) -> FrameView:
    """Return the frame with key 13 set: a splice of the original bytes where the map head allows it.

    The peer accepts keys in any order, so the pair goes to the end and nothing else moves.
    """
    head = view.body[0]
    if view.xid is None and 0xA0 <= head < 0xB7:
        return view.routed(bytes((head + 1,)) + view.body[1:] + b"\x0d" + encode_plain(xid), xid)
    fields = dict(sorted({**view.fields, 13: xid}.items()))
    return _lean_view(encode_plain(fields), fields)
