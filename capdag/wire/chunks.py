"""CHUNKs at the rate of tokens (protocol-spec/wire.md, Streams).

Nearly all bytes and most frames are CHUNKs, and those of one stream differ in four places only. Reading: once a CHUNK
of a stream has been decoded and checked, the next ones are held against it byte by byte around these places. That is a
full check: bytes that are equal to good ones are good. Writing: the bytes are put together without a map.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from .frame import PROTOCOL_VERSION, FrameType, MessageId
from .heads import head_of
from .view import WIDTHS, FrameView, frame_view

_CHUNK = FrameType.CHUNK


_Stream = tuple[bytes, bytes, MessageId, MessageId | None, str]
"""A stream of which a CHUNK has been read: the bytes from the end of its payload to the index, those behind the
checksum, RID, XID, stream_id."""

_START = bytes((0, PROTOCOL_VERSION, 1, int(_CHUNK), 2, 0x50))
"""Keys 0 and 1 with their values, key 2 and the head of a RID of 16 bytes, after the head of the map."""

_HEADS = {pairs: bytes((0xA0 + pairs,)) + _START for pairs in (8, 9)}

_PREFIX = 24
"""Bytes up to the value of seq: map head, `_START`, RID, key 3."""

_KEYS = ((0, 1, 2, 3, 6, 11, 14, 16), (0, 1, 2, 3, 6, 11, 13, 14, 16))
_SPLICED = (0, 1, 2, 3, 6, 11, 14, 16, 13)
"""The keys as a router leaves them that added a routing id."""

_known: dict[bytes, list[_Stream]] = {}
known_streams = _known.get
"""Streams by the first `_PREFIX` bytes of their CHUNKs: those of one request's direction share them."""

_MAX_REQUESTS = 1024
_MAX_STREAMS = 4  # of one request at a time: arguments and outputs that are read in turn
_LONGEST_TAIL = 256  # a stranger that invents long names pays for decoding, not with our memory


def read_known(body: bytes) -> FrameView | None:
    """Return the view of a CHUNK of a stream that is known; None says that the body is to be decoded."""
    streams = _known.get(body[:_PREFIX])
    if streams is None:
        return None
    try:
        seq, at = body[24], 25
        if seq > 0x17:
            at += WIDTHS[seq]
            seq = int.from_bytes(body[25:at], "big")
        if body[at] != 6:
            return None
        size, at = body[at + 1] - 0x40, at + 2
        if size > 0x17:
            width = WIDTHS[size]
            size = int.from_bytes(body[at : at + width], "big")
            at += width
        if size < 0:
            return None
        end = at + size
        for tail, rest, rid, xid, stream_id in streams:
            if body.startswith(tail, end):
                index = end + len(tail)
                checksum = index + 1 + (0 if body[index] < 0x18 else WIDTHS[body[index]])
                if body[checksum : checksum + 2] != b"\x10\x1b" or len(body) != checksum + 10 + len(rest):
                    return None
                if rest and not body.endswith(rest):
                    return None
                return frame_view(body, _CHUNK, rid, seq, xid, stream_id, None, (at, size, index))
    except (IndexError, KeyError):
        pass  # it ends too early, or holds something else: the decoder will say
    return None


def remember(view: FrameView, fields: Mapping[int, Any]) -> None:
    """Note the stream of a CHUNK that was decoded and checked, if its form is the plain one: the usual keys in the
    usual order, one byte each."""
    body = view.body
    keys = tuple(fields)
    if not (keys in _KEYS or keys == _SPLICED) or not body.startswith(_HEADS[len(keys)]) or body[_PREFIX - 1] != 3:
        return  # or it has keys that are null, which are not among `keys`
    at = _end(body, _PREFIX)
    if body[at] != 6:
        return
    tail = after = _end(body, at + 1)
    for key in (11, 13, 14) if keys == _KEYS[1] else (11, 14):
        if body[after] != key:
            return
        last, after = after, _end(body, after + 1)
    rest = b""
    if keys == _SPLICED:
        if body[after : after + 2] != b"\x10\x1b":
            return
        rest = body[after + 10 :]
    if last - tail + len(rest) < _LONGEST_TAIL:
        if len(_known) >= _MAX_REQUESTS:
            forget_streams()
        streams = _known.setdefault(body[:_PREFIX], [])
        streams.insert(0, (body[tail : last + 1], rest, view.id, view.xid, fields[11]))
        del streams[_MAX_STREAMS:]


def forget_streams() -> None:
    """Let every CHUNK be decoded once again: what is read does not depend on it."""
    _known.clear()


def _end(body: bytes, at: int) -> int:
    """Return where the integer, byte string or text at `at` ends."""
    major, low = body[at] >> 5, body[at] & 0x1F
    after = at + 1 + (0 if low < 24 else 1 << (low - 24))
    length = low if low < 24 else int.from_bytes(body[at + 1 : after], "big")
    return after if major == 0 else after + length


_CHECKSUM = struct.Struct(">BBQ").pack

_SEQS, _PAYLOADS, _INDICES = (
    [before + head_of(major, number) + after for number in range(256)]
    for before, major, after in ((b"\x03", 0, b"\x06"), (b"", 0x40, b""), (b"\x0e", 0, b""))
)
"""Key 3, seq, key 6; the head of a payload; key 14, chunk_index: for small numbers."""

_tails: dict[tuple[str, int | None], bytes] = {}
"""Keys 11 and 13 with their values, by stream_id and XID."""


def _tail(stream_id: str, xid: int | None) -> bytes:
    text = stream_id.encode()
    routing = b"" if xid is None else b"\x0d" + head_of(0, xid)
    tail = b"\x0b" + head_of(0x60, len(text)) + text + routing
    if len(tail) <= _LONGEST_TAIL:
        if len(_tails) >= _MAX_REQUESTS:
            _tails.clear()
        _tails[stream_id, xid] = tail
    return tail


def write_plain(fields: dict[int, Any]) -> bytes | None:
    """Return the body of a good CHUNK without meta; None says that its map is to be checked and encoded."""
    keys = tuple(fields)
    if keys == _KEYS[1]:
        version, kind, rid, seq, payload, stream_id, xid, index, checksum = fields.values()
        if type(xid) is not int or not 0 <= xid < 2**64:
            return None
    elif keys == _KEYS[0]:
        version, kind, rid, seq, payload, stream_id, index, checksum = fields.values()
        xid = None
    else:
        return None
    if not (type(rid) is type(payload) is bytes and type(seq) is type(index) is type(checksum) is int):
        return None
    if kind != _CHUNK or version != PROTOCOL_VERSION or len(rid) != 16 or type(stream_id) is not str:
        return None
    if not (0 <= seq < 2**64 and 0 <= index < 2**64 and 2**32 <= checksum < 2**64):
        return None  # a checksum below 2**32 has a shorter form, and comes once in 4 billion
    try:
        tail = _tails.get((stream_id, xid)) or _tail(stream_id, xid)
    except UnicodeEncodeError:
        return None
    size = len(payload)
    return b"".join((
        _HEADS[len(keys)], rid,
        _SEQS[seq] if seq < 256 else b"\x03" + head_of(0, seq) + b"\x06",
        _PAYLOADS[size] if size < 256 else head_of(0x40, size), payload, tail,
        _INDICES[index] if index < 256 else b"\x0e" + head_of(0, index),
        _CHECKSUM(16, 0x1B, checksum),
    ))  # fmt: skip
