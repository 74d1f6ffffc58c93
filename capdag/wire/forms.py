"""Frames of a known form, CHUNKs apart (protocol-spec/wire.md, Encoding).

Frames of one type differ in few places: RID, seq, XID, the name of a stream or what a LOG or ERR says. What stands
around these holes is the form of a frame. Once a frame has been decoded and held to every rule, its form is good; and
the next one of that form is good as soon as its holes hold whole items: nothing of it is decoded.
"""

from __future__ import annotations

import struct
from typing import Any

from capdag.errors import RemoteProtocolError

from .cbor import decode_body, encode_plain
from .frame import PROTOCOL_VERSION, FrameType
from .rules import is_flat
from .view import FrameView, frame_view

_STREAM, _MESSAGE = b"\x0b", b"\x67message"
"""What stands before a text that is a hole: key 11, or this key of meta."""

_MARKS = {
    **dict.fromkeys((FrameType.STREAM_START, FrameType.STREAM_END, FrameType.CLOSE_STREAM, FrameType.CREDIT), _STREAM),
    **dict.fromkeys((FrameType.LOG, FrameType.ERR, FrameType.CANCEL), _MESSAGE),
}

Head = tuple[bytes, FrameType, bytes | None]
"""How a frame begins that has its keys in order, each in one byte, and a RID of 16 bytes, up to that; its type; what
stands before the text in frames of that type, which else have none."""

HEADS: dict[bytes, Head] = {
    start: (start, kind, _MARKS.get(kind))
    for kind in FrameType
    for pairs in range(4, 24)
    if kind is not FrameType.CHUNK
    for start in [bytes((0xA0 + pairs, 0, PROTOCOL_VERSION, 1, kind, 2, 0x50))]
}

_SEQ, _XID = b"\x03", b"\x0d"

_LONGEST = 512
_MOST = 512
"""Bytes of a frame, and forms, that are kept: a stranger that invents them pays for decoding, not with our memory."""

Form = tuple[bytes | None, bytes, bytes, bytes, *tuple[bytes, ...]]
"""The pieces around the holes: what is behind the XID, None without one; up to the RID; from behind seq to the text, if
there is one; on to the XID. `_PROGRESS` behind these says that a float follows them, as at the end of what a LOG says,
and then the XID."""

_forms: dict[Form, dict[int, Any]] = {}
"""A frame of each form."""

_number = {
    head: (size, struct.Struct(form).unpack_from)
    for head, size, form in ((0x18, 1, ">B"), (0x19, 2, ">H"), (0x1A, 4, ">I"), (0x1B, 8, ">Q"))
}
"""How a number goes on whose first byte is above 17: bytes, and what reads them. It raises where too few are left."""

_PROGRESS = b"\xfb"


def read_form(body: bytes, head: Head) -> FrameView | Form | None:  # noqa: C901 - parts that are called cost a fifth
    """Return the view of a frame of a known form. A form says: decode the body, and learn this of it if it is good."""
    start, kind, mark = head
    size = len(body)
    try:
        if size > _LONGEST or body[23] != 3:
            return None
        seq, at = body[24], 25
        if seq == 0x19:
            seq, at = body[25] << 8 | body[26], 27
        elif seq > 0x17:
            width, number = _number[seq]
            seq, at = number(body, 25)[0], 25 + width
        words, opening, end = None, b"", at
        if mark is not None:
            if mark is _STREAM and body[at] == 0x0B:
                text, opening = at + 1, mark
            else:
                text = body.find(mark, at) + len(mark)
                opening = body[at:text]
            count, begin = body[text], text + 1
            if count == 0x78:
                count, begin = 0x60 + body[begin], begin + 1
            elif not 0x60 <= count < 0x78:
                return None
            end = begin + count - 0x60
            if text < at or end > size:
                return None
            words = body[begin:end].decode()
        routing, middle, xid, closing = size, None, None, None
        if end < size:  # the last byte is no key, but may look like one
            if body[end] == 0x0D:
                routing, middle = end, _XID
            else:
                routing = body.rfind(_XID, end, -1)
        if 0 <= routing < size:
            xid, after = body[routing + 1], routing + 2
            if xid == 0x19:
                xid, after = body[after] << 8 | body[after + 1], after + 2
            elif xid > 0x17:
                width, number = _number[xid]
                xid, after = number(body, after)[0], after + width
            closing = body[after:]
        else:
            routing = size
        if mark is not _MESSAGE:
            form: Form = (closing, start, opening, middle or body[end : routing + 1])
            like = _forms.get(form)
            return form if like is None else frame_view(body, kind, body[7:23], seq, xid, words, None, None, like)
        if body[routing - 9] == 0xFB and end < routing - 8:
            told = words, routing - 8
            form = (closing, start, opening, body[end : routing - 9], _PROGRESS)
        else:
            told, form = (words, 0), (closing, start, opening, middle or body[end : routing + 1])
        like = _forms.get(form)
        return form if like is None else frame_view(body, kind, body[7:23], seq, xid, None, None, None, like, told)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        return None  # it ends too early, or holds something else: the decoder will say


_ODD_ID, _ODD_NUMBER, _ODD_TEXT, _ODD_FLOAT = bytes(range(0x60, 0x70)), 0x0123456789ABCDEF, "odd", 1.1


def learn_form(form: Form, fields: dict[int, Any]) -> None:
    """Keep a form that was found in a frame which keeps every rule, if the holes are where they seem to be.

    That is tried: with odd values in its holes, the frame must decode to itself with these values. Were a hole
    elsewhere, inside a text say, they would come out elsewhere: unless the right places hold these values anyway.
    """
    meta = fields.get(5, {})
    closing, head, opening, middle, *last = form
    mark = HEADS[head][2]
    number = encode_plain(_ODD_NUMBER)
    trial, odd = [head, _ODD_ID, _SEQ, number, opening], {2: _ODD_ID, 3: _ODD_NUMBER}
    told: dict[str, Any] = {}
    if mark is not None:
        trial.append(encode_plain(_ODD_TEXT))
    if mark is _STREAM:
        odd[11] = _ODD_TEXT
    elif mark is _MESSAGE:
        told["message"] = _ODD_TEXT
    trial.append(middle)
    if last:
        trial += (encode_plain(_ODD_FLOAT), b"" if closing is None else _XID)
        told["progress"] = _ODD_FLOAT
    if closing is not None:
        trial += (number, closing)
        odd[13] = _ODD_NUMBER
    said = {**fields, **meta, 5: None}
    if any(said.get(hole) == value for hole, value in (*odd.items(), *told.items())):
        return
    if told:
        odd[5] = {**meta, **told}
    if not is_flat(said.values()) or not fields.keys() & {11, 13} <= odd.keys():
        return  # a list would be shared by all frames of the form
    try:
        proved = decode_body(b"".join(trial)) == {**fields, **odd}
    except RemoteProtocolError:
        return
    if proved:
        if len(_forms) >= _MOST:
            forget_forms()
        _forms[form] = {**fields, 5: dict(meta)} if 5 in fields else {**fields}


def forget_forms() -> None:
    """Let every frame be decoded once again: what is read does not depend on it."""
    _forms.clear()
