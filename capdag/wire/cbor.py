"""Single CBOR items, strictly (protocol-spec/wire.md, Encoding)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import cbor2

from capdag.errors import LocalProtocolError, RemoteProtocolError

from .flaws import find_flaw
from .scan import ItemScan
from .unsendable import MAX_DEPTH, explain_unsendable

_TAGS = (*range(64), 100, 256, 258, 260, 261, 1004, 43000, 55799)


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("CBOR tags are not part of the protocol")


STRICT: dict[str, Any] = {
    "allow_indefinite": False,
    "allow_duplicate_keys": False,
    "max_depth": MAX_DEPTH,
    "tag_hook": _refuse_tag,
    "semantic_decoders": dict.fromkeys(_TAGS, _refuse_tag),
}
"""The knobs of cbor2 that our rules need."""

_Decode = Callable[[], Any]

_LARGE = 65_536
"""A decoder keeps the bytes it read last: those of large items are let go with it."""


class _Source:
    """The file that a decoder reads. It gives everything at once, and hears what was not needed: a decoder puts back
    what follows the item, which is how trailing bytes are told without a second look or a copy."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return 0

    def read(self, _: int) -> bytes:
        data, self.data = self.data, b""
        return data

    def seek(self, offset: int, _whence: int = 0) -> NoReturn:
        raise ValueError(f"{-offset} bytes follow the CBOR item: a body is exactly one item")


class _Decoders:
    """Decoders that wait for work, one for each thread that ever decoded at the same time as others: making one takes
    as long as decoding a frame."""

    def __init__(self, **knobs: Any) -> None:
        self._knobs = {**STRICT, **knobs}
        self._idle: list[tuple[_Source, _Decode]] = []

    def decode(self, data: bytes) -> Any:
        """Decode exactly one item; raises RemoteProtocolError."""
        try:
            decoder = self._idle.pop()
        except IndexError:
            decoder = self._new()
        source, decode = decoder
        source.data = data
        try:
            value = decode()
        except Exception as error:  # noqa: BLE001 - cbor2 raises many kinds for bad input; all mean the same here
            raise RemoteProtocolError(f"not one strict CBOR item: {_reason(error)}") from None
        if len(data) < _LARGE:
            self._idle.append(decoder)
        return value

    def _new(self) -> tuple[_Source, _Decode]:
        source = _Source()
        return source, cbor2.CBORDecoder(source, **self._knobs).decode  # type: ignore[arg-type]


_any_key, _simple_keys = _Decoders(), _Decoders(strict_hashable_types=True)
"""Python hashes numbers and lists of them alike everywhere, so that lists can be chosen which all have one hash: a map
with such keys would take quadratic time, minutes for one of a few MB. Numbers alone cannot be chosen so."""

_SCANNED = 4096
"""Bytes of a body that is looked through before it is decoded: in less, keys that are lists do no harm."""


def decode_body(data: bytes) -> Any:
    """Decode the one CBOR item that the body of a frame is. Raises RemoteProtocolError.

    Of keys that are lists or maps it only makes sure that they cost little: no rule of frames lets one pass.
    """
    if len(data) > _SCANNED:
        ItemScan().advance(data)
    return _any_key.decode(data)


def decode_value(data: bytes) -> Any:
    """Decode exactly one CBOR item under the strict rules; raises RemoteProtocolError."""
    try:
        value = _decode_value(data)
    except RemoteProtocolError as error:
        flaw = find_flaw(data)
        raise error if flaw is None else RemoteProtocolError(f"not one strict CBOR item: {flaw}") from None
    if type(value) not in SCALARS and not _is_plain(value):
        raise RemoteProtocolError(f"not one strict CBOR item: {find_flaw(data) or 'a simple value'}")
    return value


def _decode_value(data: bytes) -> Any:
    try:
        return _simple_keys.decode(data)
    except RemoteProtocolError:
        ItemScan().advance(data)  # it is wrong, or it has keys that are not texts or bytes
    return _any_key.decode(data)


SCALARS = frozenset({int, float, str, bytes, bool, type(None)})
"""Types of values that hold no others, as frames and payloads may have them."""


def _is_plain(value: object) -> bool:
    """True for what has no undefined and no simple value in it, which decoders let pass."""
    if type(value) is dict:
        for key in value:
            if type(key) not in SCALARS:
                return False
        value = value.values()
    elif type(value) is not list:
        return type(value) in SCALARS
    for item in value:  # noqa: SIM110 - a generator takes twice as long
        if type(item) not in SCALARS and not _is_plain(item):
            return False
    return True


def encode_value(value: Any) -> bytes:
    """Encode one value. Raises LocalProtocolError for what `decode_value` would refuse, and says what to send instead.

    What holds other values is decoded once to see that it can be, which is quicker than to look at each of them.
    """
    data = encode_plain(value)
    if type(value) not in _SURE:
        try:
            decode_value(data)
        except RemoteProtocolError as error:
            raise _unsendable(value, error) from None
    return data


_SURE = frozenset({str, bytes, bytearray, bool, float, type(None)})


def encode_plain(value: Any) -> bytes:
    """Encode a value that is known to be plain. Raises LocalProtocolError for text that is not Unicode."""
    try:
        return cbor2.dumps(value)
    except Exception as error:  # noqa: BLE001 - same: the encoder's kinds are many, the meaning is one
        raise _unsendable(value, error) from None


def _unsendable(value: object, error: Exception) -> LocalProtocolError:
    return LocalProtocolError(f"cannot be encoded as CBOR: {explain_unsendable(value) or _reason(error)}")


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def _check_decoder() -> None:
    """Make sure that this release of cbor2 puts back what it does not need: all strictness about it rests on that."""
    try:
        decode_value(b"\x00\x00")
    except RemoteProtocolError:
        return
    raise ImportError(f"cbor2 {cbor2.__file__} does not tell of bytes after an item: install cbor2 6.3")


_check_decoder()
