"""The tables of protocol-spec are those of the code."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from capdag.errors import CODES
from capdag.wire import DEFAULT_LIMITS, DropReason, FrameType
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
        if "conformance" not in path.parts  # it tries what peers make of a code that nobody knows
        for code in codes_in(path)
    }
    assert len(sent) > 15
    assert sent <= set(CODES)


def test_drop_reasons() -> None:
    law = re.search(r"\*\*L51\*\*(.*?)\n\n", (SPEC / "wire.md").read_text(), re.DOTALL)
    assert law is not None
    assert tuple(re.findall(r"`(\w+)`", law[1])) == get_args(DropReason)  # mypy holds the routers to it
    routers = "".join(path.read_text() for path in (SPEC.parent / "capdag").glob("[hr]*/*.py"))
    assert all(f'"{reason}"' in routers for reason in get_args(DropReason))


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


def test_the_walk_is_the_traces() -> None:
    blocks = re.findall(r"```walk (\w+) (\d+)\n(.*?)```", (SPEC / "wire.md").read_text(), re.DOTALL)
    assert len(blocks) == 10
    for trace, number, block in blocks:
        body = bytes.fromhex(load_trace(trace)[int(number)])
        shown = bytes.fromhex("".join(line.partition(";")[0] for line in block.splitlines()))
        assert shown == len(body).to_bytes(4, "big") + body


def load_trace(name: str) -> dict[int, str]:
    frames = json.loads((SPEC / "vectors" / "traces" / f"{name}.json").read_text())["frames"]
    return {frame["n"]: frame["hex"] for frame in frames}


VECTORS = SPEC / "vectors"
README = (VECTORS / "README.md").read_text()
TRACES = [json.loads(path.read_text()) for path in sorted((VECTORS / "traces").glob("[0-9]*.json"))]
FILES = {path.name: path for room in ("wire", "urn") for path in (VECTORS / room).glob("*.json")}


def test_vectors_have_the_rows_that_their_page_counts() -> None:
    found = {row[0]: int(row[1]) for row in rows("vectors/README.md") if row[0].endswith(".json")}
    assert found == {name: len(json.loads(FILES[name].read_text())) for name in FILES.keys() - {"about.json"}}
    counted = {
        len(TRACES): r"lists (\d+) recorded",
        sum(len(trace["frames"]) for trace in TRACES): r"frames of ([\d,]+)\)",
        sum("hex" in frame for trace in TRACES for frame in trace["frames"]): r"\(([\d,]+) frames of",
        json.dumps(TRACES).count('"json_bytes"'): r"(\d+) of these in",
        sum(
            "json_bytes" in json.dumps(frame) for trace in TRACES for frame in trace["frames"]
        ): r"these in (\d+) frames",
        sum(
            "rt" in row or "rt_e" in row for row in json.loads(FILES["canonical.json"].read_text())
        ): r"the (\d+) rows of",
    }
    assert {
        count: [int(n.replace(",", "")) for n in re.findall(words, README)] for count, words in counted.items()
    } == {count: [count] for count in counted}


def test_the_index_lists_every_trace() -> None:
    index = json.loads((VECTORS / "traces" / "index.json").read_text())
    paths = sorted((VECTORS / "traces").glob("[0-9]*.json"))
    assert index == [
        {"file": path.name, "title": trace["title"], "frames": len(trace["frames"]), "bytes": path.stat().st_size}
        for path, trace in zip(paths, TRACES, strict=True)
    ]


def test_every_column_of_the_vectors_is_named() -> None:
    named = set(re.findall(r"`(\w+)`", README))
    tables = [json.loads(path.read_text()) for name, path in FILES.items() if name != "about.json"]
    columns = {column for table in tables for row in table for column in row}
    columns |= {name for row in json.loads(FILES["accessors.json"].read_text()) for name in row["reads"]}
    columns |= {column for trace in TRACES for frame in (trace, *trace["frames"]) for column in frame}
    columns |= {row["op"] for row in json.loads(FILES["response_media.json"].read_text())}
    assert columns - named == set()


def test_rows_that_are_named_as_departures_exist() -> None:
    names = {
        row["name"]
        for name in FILES.keys() - {"about.json"}
        for row in json.loads(FILES[name].read_text())
        if "name" in row
    }
    departures = set(re.findall(r"`((?:cart|err|end)_\w+)`", README.partition("\nDepartures. ")[2].partition("###")[0]))
    assert len(departures) == 7
    assert departures <= names


def test_the_laws_are_numbered_in_order() -> None:
    numbers = [
        int(number) for number in re.findall(r"^- \*\*L(\d+)\*\* ", (SPEC / "wire.md").read_text(), re.MULTILINE)
    ]
    assert numbers == list(range(1, len(numbers) + 1))
    used = [int(number) for page in SPEC.glob("*.md") for number in re.findall(r"\bL(\d+)\b", page.read_text())]
    assert max(used) == numbers[-1]


def test_links_lead_somewhere() -> None:
    for page in SPEC.glob("**/*.md"):
        text = page.read_text()
        anchors = {
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text):
            assert not target or target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
        for anchor in re.findall(r"\]\(#([^)]*)\)", text):
            assert anchor in anchors, f"{page.name}: #{anchor}"
