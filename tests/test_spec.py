"""The tables of protocol-spec are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from capdag.errors import CODES
from capdag.wire import DEFAULT_LIMITS, FrameType
from capdag.wire.frame import FIELD_NAMES, FLOW_TYPES, TERMINAL_TYPES

SPEC = Path(__file__).parents[1] / "protocol-spec"


def rows(page: str) -> list[list[str]]:
    lines = (SPEC / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_error_codes() -> None:
    found = {row[0]: row[1:] for row in rows("errors.md")[2:]}
    assert found == {
        code: [
            facts.attribution,
            str(facts.status or "none"),
            facts.type,
            facts.http_code,
            "yes" if facts.retryable else "no",
        ]
        for code, facts in CODES.items()
    }


def test_frame_types() -> None:
    found = {int(row[0]): row[1:3] for row in rows("wire.md") if row[0].isdigit() and row[1].isupper()}
    assert found == {
        int(kind): [kind.name, "yes, terminal" if kind in TERMINAL_TYPES else "yes" if kind in FLOW_TYPES else ""]
        for kind in FrameType
    }


def test_keys() -> None:
    cells = re.findall(r"\| (\d+) \| (\w+)(?: \([RX]ID\))? \|", (SPEC / "wire.md").read_text())
    assert {int(key): name for key, name in cells if name.islower()} == FIELD_NAMES


def test_default_limits() -> None:
    found = {row[0]: int(row[1].replace(",", "")) for row in rows("wire.md") if row[0] in DEFAULT_LIMITS._fields}
    assert found == DEFAULT_LIMITS._asdict()
