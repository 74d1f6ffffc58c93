"""Fragments of a sequence. Any bytes give items or a RemoteProtocolError; whole and byte by byte they give the same; an
item is a value that can be written and read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from capdag.errors import RemoteProtocolError
from capdag.wire import ItemReader, decode_value, encode_value

from ..vectors import load, traces


def seeds() -> Iterator[bytes]:
    """The payloads of each trace in a row, and every body of the vectors, which is an item too."""
    for frames in traces():
        payloads = [frame["fields"].get("payload") or "" for frame in frames]
        yield b"".join(bytes.fromhex(payload) for payload in payloads if isinstance(payload, str))
    yield from (bytes.fromhex(row["hex"]) for row in load("wire/invalid"))


def check(data: bytes) -> None:
    """See the module."""
    whole, *ending = _read([data], len(data))
    by_byte, *by_byte_ending = _read((data[at : at + 1] for at in range(len(data))), len(data))
    assert ending == by_byte_ending
    assert not ending[0] or repr(by_byte) == repr(whole)
    for item in by_byte:
        assert repr(decode_value(encode_value(item))) == repr(item)


def _read(pieces: Iterable[bytes], most: int) -> tuple[list[Any], bool, bool]:
    """Return the items, whether all was well, and whether an item is unfinished."""
    reader = ItemReader(max_item=most)
    items: list[Any] = []
    try:
        for piece in pieces:
            items.extend(reader.feed(piece))
    except RemoteProtocolError:
        return items, False, False
    return items, True, reader.inside_item
