"""Where a CBOR item ends, and what is wrong with it, without decoding (protocol-spec/wire.md, Encoding)."""

from __future__ import annotations

from capdag.errors import RemoteProtocolError

from .unsendable import MAX_DEPTH


class ItemScan:
    """Finds the end of one item, resuming where the bytes ran out. Linear, whatever the item's shape."""

    __slots__ = ("_keys", "_open", "_position")

    def __init__(self) -> None:
        self._position = 0
        self._open = [1]  # items still missing at each level; the first is the whole item
        self._keys = [False]  # at each level: are they the keys and values of a map

    def advance(self, data: bytes | bytearray) -> int:
        """Return the item's length once it is whole, else 0. Raises RemoteProtocolError for what is no strict CBOR."""
        end = len(data)
        while self._open:
            if self._position >= end:
                return 0
            head = data[self._position]
            extra = head & 0x1F
            width = 0 if extra < 24 else 1 << (extra - 24) if extra < 28 else -1
            if width < 0 or head >> 5 == 6:
                raise self._wrong(f"a tag or no definite length (byte 0x{head:02x})")
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
        elif major in (4, 5):
            if self._keys[-1] and not self._open[-1] & 1:
                raise self._wrong("a key that is an array or a map")
            if count and len(self._open) > MAX_DEPTH:
                raise self._wrong(f"nesting deeper than {MAX_DEPTH}")
        self._position = after
        self._open[-1] -= 1
        if major in (4, 5) and count:
            self._open.append(count * (major - 3))
            self._keys.append(major == 5)
        while self._open and not self._open[-1]:
            self._open.pop()
            self._keys.pop()
        return True

    def _wrong(self, why: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"not one strict CBOR item: {why}, at offset {self._position}")
