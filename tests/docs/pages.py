"""The code blocks of a page of the docs, as its reader meets them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"

_BLOCK = re.compile(r"(?:^`(?P<file>[\w./]+)`\n\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One block. `file` is the name that the line before it gives: the reader saves it under that."""

    language: str
    text: str
    file: str | None


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    for found in _BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        yield Block(found["language"], found["text"], found["file"])
