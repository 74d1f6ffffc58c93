"""Writing frames of a known form, CHUNKs apart (protocol-spec/wire.md, Encoding): the other half of `forms`.

Once a frame of ours has been held to every rule and encoded, the next one with the same keys, types of values and
values outside of the holes is put together from pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from cbor2 import dumps

from .cbor import encode_plain
from .frame import FIELD_NAMES, FixedMeta, FrameType
from .heads import head_of
from .rules import is_meta

_LONGEST = 512
_MOST = 512
"""Bytes of a piece, and pieces of a kind, that are kept."""

_HOLES = frozenset({2, 3, 5, 11, 13})

V = TypeVar("V")


class _Pieces(dict[V, bytes]):
    """A key and its value as bytes, by values that come again and again."""

    def __init__(self, key: int, encode: Callable[[V], bytes]) -> None:
        self._key = bytes((key,))
        self._encode = encode

    def __missing__(self, value: V) -> bytes:
        piece = self._key + self._encode(value)
        if len(piece) < _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[value] = piece
        return piece


def _uint(value: int) -> bytes:
    return head_of(0, value)


_seqs, _names, _xids = _Pieces(3, _uint), _Pieces(11, dumps), _Pieces(13, _uint)


Pieces = tuple[bytes, bytes, bytes, bytes, bytes]
"""Up to the RID; between seq, meta, stream_id and XID; behind it."""


class _Plan(NamedTuple):
    """How frames with the same keys, and values of the same types, are written. `literals` gives the values outside of
    the holes, and `pieces`, by these, what stands around the holes."""

    literals: Callable[[Mapping[int, Any]], tuple[Any, ...]]
    pieces: dict[tuple[Any, ...], Pieces]


_plans: dict[tuple[object, ...], _Plan] = {}


def write_form(fields: dict[int, Any]) -> bytes | None:
    """Return the body of a good frame of a known form; None says that its map is to be checked and encoded."""
    try:
        literals, pieces = _plans[(*fields, *map(type, fields.values()))]
        head, opening, after_meta, after_stream, closing = pieces[literals(fields)]
        rid, told, stream, routing = fields[2], b"", b"", b""
        if 5 in fields:
            meta = fields[5]
            if type(meta) is FixedMeta:
                told = meta.piece
            elif is_meta(meta):
                told = b"\x05" + dumps(meta)
            else:
                return None
        if 11 in fields:
            stream = _names[fields[11]]
        if 13 in fields:
            routing = _xids[fields[13]]
        if len(rid) != 16:
            return None
        seq = _seqs[fields[3]]
        return b"".join((head, rid, seq, opening, told, after_meta, stream, after_stream, routing, closing))
    except (KeyError, ValueError, struct.error):
        return None  # no plan yet; an integer out of range, or half a character: the check will say


def learn_written(fields: dict[int, Any], body: bytes) -> None:
    """Keep the form of a frame of ours that keeps every rule, and was encoded as `body`."""
    kind, rid = fields[1], fields[2]
    if kind == FrameType.CHUNK or type(rid) is not bytes or len(body) > _LONGEST or max(fields) > max(FIELD_NAMES):
        return

    def piece(*keys: int) -> bytes:
        return b"".join(encode_plain(key) + encode_plain(fields[key]) for key in keys if key in fields)

    pieces = (body[:7], piece(4), piece(*range(6, 11)), piece(12), piece(*range(14, 22)))
    head, opening, after_meta, after_stream, closing = pieces
    whole = (head, rid, piece(3), opening, piece(5), after_meta, piece(11), after_stream, piece(13), closing)
    if body != b"".join(whole) or 3 not in fields or type(fields.get(13, 0)) is not int:
        return
    if len(_plans) >= _MOST:
        _plans.clear()
    literals = itemgetter(*(key for key in fields if key not in _HOLES))
    plan = _plans.setdefault((*fields, *map(type, fields.values())), _Plan(literals, {}))
    if len(plan.pieces) >= _MOST:
        plan.pieces.clear()
    plan.pieces[literals(fields)] = pieces


def forget_plans() -> None:
    """Let every frame be checked and encoded once again: what is written does not depend on it."""
    _plans.clear()
