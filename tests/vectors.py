"""Golden data of protocol-spec/vectors, for parametrised tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "protocol-spec" / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """Return the rows of one vector file, such as `wire/valid`."""
    rows: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return rows


def named(row: dict[str, Any]) -> str:
    """Return the id of a row for pytest."""
    return str(row.get("name", ""))
