"""The numbered laws of a page of protocol-spec, and the tests that name them in their docstrings."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


class Page:
    """A page whose laws are `- X1. …`; each section's title names its test modules, in brackets.

    The modules are in `folders` under tests/.
    """

    def __init__(self, name: str, letter: str, *folders: str) -> None:
        self._text = (TESTS.parent / "protocol-spec" / name).read_text()
        self._letter = letter
        self._modules = {path.stem: path for folder in folders for path in (TESTS / folder).glob("test_*.py")}

    def _sections(self) -> Iterator[tuple[list[str], list[int]]]:
        """Yield, a section, the test modules that its title names and the numbers of its laws."""
        for section in re.split(r"^## ", self._text, flags=re.MULTILINE)[1:]:
            title, _, text = section.partition("\n")
            modules = re.findall(r"\w+", title.partition("[")[2])
            yield modules, [int(number) for number in re.findall(rf"^- {self._letter}(\d+)\. ", text, re.MULTILINE)]

    def _named(self) -> dict[str, set[int]]:
        """Return the laws that the tests of each module name."""
        found: dict[str, set[int]] = defaultdict(set)
        for module, path in self._modules.items():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                    words = ast.get_docstring(node) or ""
                    found[module] |= {int(number) for number in re.findall(rf"\b{self._letter}(\d+)\b", words)}
        return found

    def check_numbers(self, least: int) -> None:
        """Check that there are more than `least` laws, numbered from 1."""
        numbers = sorted(number for _, laws in self._sections() for number in laws)
        assert len(numbers) > least
        assert numbers == list(range(1, len(numbers) + 1))

    def check_tests(self) -> None:
        """Check that every law is named by a test of its section, and no other law is."""
        tests = self._named()
        laws = {law: modules for modules, numbers in self._sections() for law in numbers}
        assert set().union(*tests.values()) <= laws.keys()
        assert {law: of for law, of in laws.items() if not any(law in tests[module] for module in of)} == {}

    def check_modules(self) -> None:
        """Check that every module that the page names is there."""
        assert {module for modules, _ in self._sections() for module in modules} <= self._modules.keys()
