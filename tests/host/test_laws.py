"""The numbered laws of protocol-spec/host.md, and the tests that name them in their docstrings, agree."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "protocol-spec" / "host.md").read_text()


def sections() -> Iterator[tuple[list[str], list[int]]]:
    """Yield, a section, the test modules that its title names and the numbers of its laws."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        modules = re.findall(r"\w+", title.partition("[")[2])
        yield modules, [int(number) for number in re.findall(r"^- H(\d+)\. ", text, re.MULTILINE)]


def named() -> dict[str, set[int]]:
    """Return the laws that the tests of each module name."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                found[path.stem] |= {int(number) for number in re.findall(r"\bH(\d+)\b", ast.get_docstring(node) or "")}
    return found


def test_every_law_has_one_number() -> None:
    numbers = sorted(number for _, laws in sections() for number in laws)
    assert len(numbers) > 40
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_law_is_named_by_a_test_of_its_section_and_no_other_law_is() -> None:
    tests = named()
    laws = {law: modules for modules, numbers in sections() for law in numbers}
    assert set().union(*tests.values()) <= laws.keys()
    assert {law: modules for law, modules in laws.items() if not any(law in tests[module] for module in modules)} == {}


def test_every_test_of_the_page_is_there() -> None:
    present = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    assert {module for modules, _ in sections() for module in modules} <= present
