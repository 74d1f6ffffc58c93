"""What a value on a command line means, and items as lines of JSON.

Command mode and `capdag call` read the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from capdag.errors import ConfigError

_SHOWN = 80
"""Bytes of a line that is no item which are shown."""


def path_in(word: str) -> str | None:
    """Return the path of the file that a word names, as @FILE; None if it is a text."""
    return word[1:] if word.startswith("@") and not word.startswith("@@") else None


def text_of(word: str) -> str:
    """Return the text that a word is: one that begins with `@` is written with two."""
    return word.removeprefix("@") if word.startswith("@@") else word


class ItemLines:
    """The items of a sequence that comes as lines of JSON, wherever it is cut. Empty lines are passed over."""

    def __init__(self, media_urn: str) -> None:
        self._media_urn = media_urn
        self._begun: list[bytes] = []
        self._lines = 0

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the items of the lines that are now whole; empty `data` is the end, which ends the last line.

        Raises ConfigError for a line that is not JSON.
        """
        *ends, rest = data.split(b"\n") if data else (b"", b"")
        for end in ends:
            line, self._begun = b"".join([*self._begun, end]), []
            self._lines += 1
            if line.strip():
                yield self._item(line)
        self._begun.append(rest)

    def _item(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"line {self._lines} of {self._media_urn} is not JSON: {error}; this argument is a sequence and has one"
                f" item a line, not {line[:_SHOWN].decode(errors='replace')!r}"
            ) from None
