"""The golden data of protocol-spec, as raw material for seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "protocol-spec" / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """Return the rows of one file, such as `wire/valid`."""
    rows: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())
    return rows


def traces() -> Iterator[list[dict[str, Any]]]:
    """Yield the frames of every recorded conversation."""
    for path in sorted((VECTORS / "traces").glob("[0-9]*.json")):
        yield json.loads(path.read_text())["frames"]
