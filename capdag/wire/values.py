"""Values inside CHUNK payloads (protocol-spec/wire.md, Values).

A scalar stream carries one complete CBOR value a CHUNK; a sequence stream carries the encoding of each item, cut into
fragments, every item beginning on a fresh CHUNK.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capdag.errors import LocalProtocolError, RemoteProtocolError

from .cbor import decode_value, encode_value
from .heads import head_of
from .scan import ItemScan
from .unsendable import explain_unsendable

_BYTES = 0x40
"""Major type of a byte string, as the first byte of its head."""

DEFAULT_MAX_ITEM = 64 * 1024 * 1024
"""Longest encoding of one sequence item that a receiver collects (bytes)."""


def scalar_payloads(value: Any, max_chunk: int) -> Iterator[bytes]:
    """Yield the CHUNK payloads of one value written to a scalar stream.

    Bytes and text are split at `max_chunk` (text between characters), a list goes element by element, a map pair by
    pair; an empty one of these gives no CHUNK. Raises LocalProtocolError once it comes to what cannot be encoded.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        whole = memoryview(value).cast("B")
        for start in range(0, len(whole), max_chunk):
            piece = whole[start : start + max_chunk]
            yield b"".join((head_of(_BYTES, len(piece)), piece))  # as encode_value does, with one copy for three
    elif isinstance(value, str):
        yield from map(encode_value, _split_text(value, max_chunk))
    elif isinstance(value, (list, tuple)):
        yield from map(encode_value, value)
    elif isinstance(value, dict):
        yield from (encode_value([key, item]) for key, item in value.items())
    else:
        yield encode_value(value)


def _split_text(text: str, max_chunk: int) -> Iterator[str]:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError(f"cannot be encoded as CBOR: {explain_unsendable(text)}") from None
    start = 0
    while start < len(data):
        end = min(start + max_chunk, len(data))
        while end > start and _inside_character(data, end):
            end -= 1
        if end == start:  # max_chunk is less than this character takes: it goes whole
            end += 1
            while _inside_character(data, end):
                end += 1
        yield data[start:end].decode()
        start = end


def _inside_character(data: bytes, position: int) -> bool:
    return position < len(data) and data[position] & 0xC0 == 0x80


def item_payloads(item: Any, max_chunk: int) -> list[bytes]:
    """Return the CHUNK payloads of one item of a sequence stream: its encoding cut at `max_chunk` bytes."""
    whole = encode_value(item)
    return [whole[start : start + max_chunk] for start in range(0, len(whole), max_chunk)]


class ItemReader:
    """Collects fragments of a sequence stream into items. Linear in the bytes fed, whatever the item's shape."""

    def __init__(self, max_item: int = DEFAULT_MAX_ITEM) -> None:
        self._max_item = max_item
        self._held = bytearray()
        self._scan = ItemScan()

    @property
    def inside_item(self) -> bool:
        """True between an item's first byte and its last."""
        return bool(self._held)

    def feed(self, payload: bytes) -> list[Any]:
        """Take one CHUNK payload and return the items that are now whole. Raises RemoteProtocolError."""
        self._held += payload
        items = []
        while self._held and (end := self._scan.advance(self._held)):
            items.append(decode_value(bytes(self._held[:end])))
            del self._held[:end]
            self._scan = ItemScan()
        if len(self._held) > self._max_item:
            raise RemoteProtocolError(
                f"a sequence item is over {self._max_item} bytes: raise the receiver's max_item or send smaller items"
            )
        return items
