"""The heads of CBOR items: a major type and a number (protocol-spec/wire.md, Encoding)."""

from __future__ import annotations

from struct import Struct

_PAIR, _WORD, _QUAD, _LONG = (Struct(form).pack for form in (">BB", ">BH", ">BI", ">BQ"))


def head_of(major: int, number: int) -> bytes:
    """Return the shortest head; `major` is the first byte of the form for 0.

    Raises struct.error for a number past 64 bits, ValueError or struct.error for one below 0.
    """
    if number < 24:
        return bytes((major + number,))
    if number < 0x100:
        return _PAIR(major + 24, number)
    if number < 0x10000:
        return _WORD(major + 25, number)
    return _QUAD(major + 26, number) if number < 2**32 else _LONG(major + 27, number)
