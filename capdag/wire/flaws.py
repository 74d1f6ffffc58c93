"""What is wrong with a CBOR item that was refused, and where in it (protocol-spec/wire.md, Encoding).

Decoders say that something is wrong, and seldom where. This looks for it, once an item has been refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from .unsendable import MAX_DEPTH

_MOST = 10_000
"""Items that are looked at, some 10 ms: a stranger pays for a bad frame with its link, and we not with our time."""

_SHOWN = 40

_FLOATS = {25: Struct(">e").unpack, 26: Struct(">f").unpack, 27: Struct(">d").unpack}
_SIMPLE = {0xF4: False, 0xF5: True, 0xF6: None}


class Flaw(NamedTuple):
    """The first thing in an item that may not be there.

    `path` are the keys and places that lead to it, `offset` counts bytes; `before` are the pairs of the outermost map
    that came before it, those whose values are no lists or maps.
    """

    path: tuple[object, ...]
    what: str
    offset: int
    before: dict[object, object]

    def __str__(self) -> str:
        """Say where and what, as in `at ['a'][3], a tag (byte 0xc1), at offset 12`."""
        return f"{f'at {shown_path(self.path)}, ' if self.path else ''}{self.what}, at offset {self.offset}"


def shown_path(path: Iterable[object]) -> str:
    """Return a path as code has it, its keys cut short."""
    return "".join(f"[{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}]" for text in map(repr, path))


def find_flaw(data: bytes) -> Flaw | None:
    """Return the first flaw of what should be one strict item; None if none is found in the items looked at."""
    walk = _Walk(data)
    try:
        walk.item(1, is_key=False)
        if walk.at < len(data):
            walk.start = walk.at
            raise _FlawedError(f"{len(data) - walk.at} bytes more than one item")
    except _FlawedError as found:
        return Flaw(tuple(walk.path), str(found), walk.start, walk.before)
    except _EnoughError:
        pass
    return None


class _FlawedError(Exception):
    """Something may not be there; the text says what."""


class _EnoughError(Exception):
    """As many items as are looked at have been."""


class _Walk:
    """Reads items one after the other. Recursion is as deep as items may be nested."""

    def __init__(self, data: bytes) -> None:
        self.path: list[object] = []
        self.before: dict[object, object] = {}
        self.at = 0
        self.start = 0
        self._data = data
        self._left = _MOST

    def item(self, depth: int, *, is_key: bool) -> object:
        """Read one item; returns what it holds, None for an array or a map."""
        self.start = self.at
        self._left -= 1
        if not self._left:
            raise _EnoughError
        head = self._take(1)[0]
        major, extra = head >> 5, head & 0x1F
        if major == 6:
            raise _FlawedError(f"a tag (byte 0x{head:02x})")
        if extra == 31:
            raise _FlawedError(f"an indefinite length (byte 0x{head:02x})")
        if extra > 27:
            raise _FlawedError(f"byte 0x{head:02x}, which begins no item")
        rest = self._take(0 if extra < 24 else 1 << (extra - 24))
        number = int.from_bytes(rest, "big") if rest else extra
        if major < 2:
            return -1 - number if major else number
        if major == 7:
            return _FLOATS[extra](rest)[0] if extra in _FLOATS else self._simple(head, number)
        if major in (2, 3):
            return self._string(self._take(number), is_text=major == 3)
        if is_key:
            raise _FlawedError("a key that is an array or a map")
        if number and depth > MAX_DEPTH:
            raise _FlawedError(f"nesting deeper than {MAX_DEPTH}")
        self._inside(number, depth, is_map=major == 5)
        return None

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise _FlawedError(f"{end - len(self._data)} bytes too few")
        taken, self.at = self._data[self.at : end], end
        return taken

    @staticmethod
    def _simple(head: int, number: int) -> object:
        if head in _SIMPLE:
            return _SIMPLE[head]
        raise _FlawedError("undefined" if number == 23 else f"simple value {number}")

    @staticmethod
    def _string(data: bytes, *, is_text: bool) -> object:
        try:
            return data.decode() if is_text else data
        except UnicodeDecodeError as error:
            raise _FlawedError(f"text that is not UTF-8 ({data[error.start : error.start + 8]!r})") from None

    def _inside(self, count: int, depth: int, *, is_map: bool) -> None:
        keys = set()
        for place in range(count):
            key: object = place
            if is_map:
                key = self.item(depth + 1, is_key=True)
                if key in keys:
                    raise _FlawedError(f"the key {shown_path((key,))[1:-1]} twice")
                keys.add(key)
            self.path.append(key)
            value = self.item(depth + 1, is_key=False)
            self.path.pop()
            if is_map and depth == 1:
                self.before[key] = value
