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
from .unsendable import MAX_DEPTH, explain_unsendable

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
        self._scan = _Scan()

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
            self._scan = _Scan()
        if len(self._held) > self._max_item:
            raise RemoteProtocolError(
                f"a sequence item is over {self._max_item} bytes: raise the receiver's max_item or send smaller items"
            )
        return items


class _Scan:
    """Finds the end of one CBOR item without decoding it, resuming where the bytes ran out."""

    __slots__ = ("_open", "_position")

    def __init__(self) -> None:
        self._position = 0
        self._open = [1]  # items still missing at each level; the first is the whole item

    def advance(self, data: bytearray) -> int:
        """Return the item's length once it is whole, else 0. Raises RemoteProtocolError for what is no strict CBOR."""
        end = len(data)
        while self._open:
            if self._position >= end:
                return 0
            head = data[self._position]
            extra = head & 0x1F
            width = 0 if extra < 24 else 1 << (extra - 24) if extra < 28 else -1
            if width < 0 or head >> 5 == 6:
                raise RemoteProtocolError(f"a sequence item holds byte 0x{head:02x}, which strict CBOR does not allow")
            after = self._position + 1 + width
            if after > end:
                return 0
            count = extra if not width else int.from_bytes(data[self._position + 1 : after], "big")
            if not self._step(head >> 5, count, after, end):
                return 0
        return self._position

    def _step(self, major: int, count: int, after: int, end: int) -> bool:
        if major in (2, 3):
            if after + count > end:
                return False
            after += count
        self._position = after
        self._open[-1] -= 1
        if major in (4, 5) and count:
            if len(self._open) > MAX_DEPTH:
                raise RemoteProtocolError(f"a sequence item is nested deeper than {MAX_DEPTH}")
            self._open.append(count * (major - 3))
        while self._open and not self._open[-1]:
            self._open.pop()
        return True
