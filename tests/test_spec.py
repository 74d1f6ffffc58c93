"""The tables of protocol-spec are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from capdag.errors import CODES
from capdag.wire import DEFAULT_LIMITS, FrameType
from capdag.wire.frame import FIELD_NAMES, FLOW_TYPES, TERMINAL_TYPES

SPEC = Path(__file__).parents[1] / "protocol-spec"


def rows(page: str) -> list[list[str]]:
    lines = (SPEC / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_error_codes() -> None:
    found = {row[0]: row[1:6] for row in rows("errors.md") if row[0].strip("`") in CODES}
    assert found == {
        code: [
            facts.attribution,
            str(facts.status or "none"),
            facts.type,
            facts.http_code,
            facts.retry,
        ]
        for code, facts in CODES.items()
    }


_CODED = {"Failure", "failure", "CartridgeError", "CancelReason", "Fault", "refuse", "RequestFailedError"}
"""Calls whose first argument is an error code."""


def codes_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CODED:
            yield from (one.value for one in node.args[:1] if isinstance(one, ast.Constant))
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                    yield ast.literal_eval(line.value)


def test_no_other_code_is_sent() -> None:
    sent = {
        code
        for room in ("capdag", "cartridges")
        for path in SPEC.parent.glob(f"{room}/**/*.py")
        for code in codes_in(path)
    }
    assert len(sent) > 15
    assert sent <= set(CODES)


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
