"""The guide's code is one cartridge that works; the pages lead where they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capdag.config import parse_config
from capdag.urn import CapUrn
from tests.docs.pages import DOCS, blocks


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the guide's code as one module and return its folder."""
    folder = tmp_path_factory.mktemp("guide")
    code = "\n".join(block.text for block in blocks("blocking-engines.md") if block.language == "python")
    (folder / "engines.py").write_text(code, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("cap", "answer"),
    [
        ("stepwise", b'"a"\n"b"\n'),
        ("called-back", b'"a"\n"b"\n'),
        ("abortable", b"A B"),
        ("separate", b"b a"),
        ("loaded", b"A B"),
        ("queued", b'"a"\n"b"\n'),
        ("waiting", b"A B"),
    ],
)
def test_every_way_to_hold_an_engine_works(engines: Path, cap: str, answer: bytes) -> None:
    line = [sys.executable, "-m", "capdag.cartridge", "engines", cap]
    done = subprocess.run(line, cwd=engines, input=b"a b", capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_the_table_and_the_package_are_as_the_page_says(tmp_path: Path) -> None:
    table, package, _ = blocks("discovery.md")
    (cartridge,) = parse_config(table.text).cartridge
    assert {field for field in cartridge.__struct_fields__ if getattr(cartridge, field)} == set(
        cartridge.__struct_fields__
    ), "the table shows every key"
    names: dict[str, Any] = {}
    exec(package.text, names)
    (tmp_path / "zen.book").touch()
    (record,) = names["SPEC"].records(tmp_path, lambda model: {"slots": 2, "for": model})
    assert record.id == "books/zen"
    assert record.settings == {"path": str(tmp_path / "zen.book"), "slots": 2, "for": "zen"}
    assert CapUrn.parse(record.caps[0]["urn"]).tags["model"] == "zen"


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)?(?:#([\w-]+))?\)", text)
    for path, anchor in links:
        target = DOCS / path if path else DOCS / page
        assert target.exists(), f"{page} links to {path}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DOCS.glob("*.md") if path.name != "README.md" and f"({path.name})" not in index] == []
