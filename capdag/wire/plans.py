"""Writing frames of a known form, CHUNKs apart (protocol-spec/wire.md, Encoding): the other half of `forms`.

Once a frame of ours has been held to every rule and encoded, the next one of its type with the same keys is put
together from pieces. What does that is compiled for these keys, as the standard library does for its dataclasses: a
loop over the pairs takes nearly twice as long, and more than cbor2 takes for the whole frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cbor2 import dumps

from .cbor import encode_plain
from .frame import FIELD_NAMES, FixedMeta, FrameType
from .heads import head_of
from .rules import is_meta

_LONGEST = 512
_MOST = 512
"""Bytes of a piece, and pieces of a key, that are kept; and writers, after which no more are compiled."""

V = TypeVar("V")


class _Pieces(dict[V, bytes]):
    """A key and its value as bytes, by values that come again and again."""

    def __init__(self, key: bytes, encode: Callable[[V], bytes]) -> None:
        self._key = key
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


_lengths: _Pieces[int] = _Pieces(b"", lambda size: head_of(0x60, size))
_double = struct.Struct(">d").pack

Write = Callable[[Any], "bytes | None"]
"""What writes a map; None for one that it cannot vouch for."""

_writers: dict[tuple[int, ...], Write] = {}
"""By frame type and the keys in their order."""

_tellers: dict[tuple[str, ...], Write] = {}
"""What writes a meta that tells something, by its keys in their order."""


def write_form(fields: dict[int, Any]) -> bytes | None:
    """Return the body of a good frame of a known form; None says that its map is to be checked and encoded."""
    try:
        write = _writers.get((fields[1], *fields))
        return None if write is None else write(fields)
    except (ValueError, struct.error):
        return None  # an integer out of range, half a character, or a meta that no frame may have: the check will say


def learn_written(fields: dict[int, Any], body: bytes) -> None:
    """Compile a writer for a frame of ours that keeps every rule, and was encoded as `body`."""
    kind = fields[1]
    if kind in (FrameType.CHUNK, FrameType.POLICY) or fields.keys() - FIELD_NAMES.keys() or 3 not in fields:
        return  # a POLICY's meta has rules of its own
    if type(fields[2]) is bytes and type(fields.get(13, 0)) is int and len(_writers) < _MOST:
        meta = fields.get(5, {})
        if meta.keys() and meta.keys() <= _TOLD.keys() and tuple(meta) not in _tellers:
            _tellers[tuple(meta)] = _compile_teller(tuple(meta))
        write = _compile_writer(fields)
        if write(fields) == body:
            _writers[kind, *fields] = write


def _compile_writer(fields: Mapping[int, Any]) -> Write:
    """Every value must be of the type that it has here, and every key has one type only, ids apart."""
    names: dict[str, Any] = {f"t{key}": type(value) for key, value in fields.items()}
    names |= {f"p{key}": pieces for key, pieces in _PIECES.items()}
    names |= {"head": bytes((0xA0 + len(fields), 0, fields[0], 1, fields[1], 2, 0x50)), "join": b"".join}
    names |= {"meta_pair": _meta_pair, "payload_pair": _payload_pair}
    tests = [f"type(v{key}) is t{key}" for key in fields if key != 5]
    tests += [f"v0 == {fields[0]}", "len(v2) == 16"]
    calls = {5: "meta_pair(v5)", 6: "payload_pair(v6)"}
    pieces = ["head", "v2", *(calls.get(key, f"p{key}[v{key}]") for key in fields if key > 2)]
    values = ", ".join(f"v{key}" for key in fields)
    return _compile(f"""
def write(fields):
    {values} = fields.values()
    if {" and ".join(tests)}:
        return join(({", ".join(pieces)}))
""", names)  # fmt: skip


def _compile(source: str, names: dict[str, Any]) -> Write:
    """`source` is made of our own words and of numbers; keys and values of others come as `names`."""
    exec(source, names)  # noqa: S102
    write: Write = names["write"]
    return write


def _meta_pair(meta: Any) -> bytes:
    """Return key 5 and its value. Raises ValueError for what it may not hold."""
    if type(meta) is FixedMeta:
        return meta.piece
    tell = _tellers.get((*meta,)) if type(meta) is dict else None
    told = None if tell is None else tell(meta)
    if told is not None:
        return told
    if is_meta(meta):
        return b"\x05" + dumps(meta)
    raise ValueError


def _payload_pair(payload: bytes) -> bytes:
    return b"\x06" + head_of(0x40, len(payload)) + payload


_NUMBERS, _TEXTS, _BOOLS = (3, 7, 8, 13, 14, 15, 16, 19), (4, 10, 11, 12, 21), (9, 17, 18, 20)

_PIECES: Mapping[int, _Pieces[Any]] = {
    key: _Pieces(bytes((key,)), _uint if key in _NUMBERS else dumps) for key in (*_NUMBERS, *_TEXTS, *_BOOLS)
}

_ANY_TEXT = ("type(v{0}) is str", "lengths[len(b{0})], b{0}")
_SAME_TEXT = ("type(v{0}) is str", "w{0}[v{0}]")
_SHARE = ("type(v{0}) is float and 0.0 <= v{0} <= 1.0", "double(v{0})")  # others have shorter forms: NaN, infinity
_TOLD = {
    "level": _SAME_TEXT, "code": _SAME_TEXT, "attribution_class": _SAME_TEXT, "message": _ANY_TEXT, "progress": _SHARE,
}  # fmt: skip
"""What LOG, ERR, CANCEL and END tell: when a value may be written, and the pieces behind its key."""


def _compile_teller(keys: tuple[str, ...]) -> Write:
    count = range(len(keys))
    names: dict[str, Any] = {"join": b"".join, "lengths": _lengths, "double": _double}
    tests, pieces, encoded = [], [f"{bytes((5, 0xA0 + len(keys)))!r}"], []
    for at, key in enumerate(keys):
        test, piece = _TOLD[key]
        name = encode_plain(key)
        names[f"w{at}"] = _Pieces(name, dumps)
        names[f"n{at}"] = name + b"\xfb" if key == "progress" else name
        if piece is not _SAME_TEXT[1]:
            pieces.append(f"n{at}")
        if piece is _ANY_TEXT[1]:
            encoded.append(f"b{at} = v{at}.encode()")
        tests += [f"type(k{at}) is str", test.format(at)]
        pieces.append(piece.format(at))
    return _compile(f"""
def write(meta):
    {"".join(f"k{at}, " for at in count)} = meta
    {"".join(f"v{at}, " for at in count)} = meta.values()
    if {" and ".join(tests)}:
        {"; ".join(encoded) or "pass"}
        return join(({", ".join(pieces)}, ))
""", names)  # fmt: skip


def forget_plans() -> None:
    """Let every frame be checked and encoded once again: what is written does not depend on it."""
    _writers.clear()
    _tellers.clear()
