"""Writes docs/cartridge-reference.md from the docstrings of the SDK: python docs/build_reference.py"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args, get_origin

import capdag.cartridge
import capdag.cartridge.launcher
import capdag.cartridge.spec

PAGE = Path(__file__).with_name("cartridge-reference.md")

HEAD = """\
# Reference of the SDK

Made from the docstrings by `python docs/build_reference.py`: edit those, not this page. The classes whose names begin
with `Async` are those of `async def` handlers.
"""

FIRST = (
    "Cartridge",
    "Request",
    "Input",
    "Output",
    "Call",
    "Argument",
    "Item",
    "CartridgeError",
    "RequestCancelledError",
)
"""What a reader looks for first; what else there is follows."""

MODULES = (
    (capdag.cartridge, [*FIRST, *(name for name in capdag.cartridge.__all__ if name not in FIRST)]),
    (capdag.cartridge.spec, ("Record", "Spec")),
    (capdag.cartridge.launcher, ("launch",)),
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def build() -> str:
    """Return the whole page."""
    return HEAD + "".join(line for module, names in MODULES for line in _module(module, names))


def _module(module: ModuleType, names: tuple[str, ...] | list[str]) -> Iterator[str]:
    yield f"\n## {module.__name__}\n\n{_doc(module)}"
    for name in names:
        found = getattr(module, name)
        yield from _class(found) if isinstance(found, type) else _function(_parse(found))


def _class(found: type) -> Iterator[str]:
    node = _parse(found)
    assert isinstance(node, ast.ClassDef)
    members = list(_members(found))
    init = next((member for member in members if member.name == "__init__"), None)
    bases = ", ".join(base.__name__ for base in found.__bases__ if base.__name__ in capdag.cartridge.__all__)
    shown = f"({_arguments(init)})" if init and _is_made_by_authors(found) else f"({bases})" if bases else ""
    yield f"\n### {found.__name__}\n\n```python\nclass {found.__name__}{shown}\n```\n\n{_doc(found)}"
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield _entry(ast.unparse(field), "")
    for member in members:
        if not member.name.startswith("_"):
            yield _entry(_filled_in(_signature(member), found), ast.get_docstring(member) or "")


def _filled_in(signature: str, found: type) -> str:
    """Write the type that a class gives its generic base in place of the base's parameter."""
    for base in getattr(found, "__orig_bases__", ()):
        for parameter, kind in zip(getattr(get_origin(base), "__parameters__", ()), get_args(base), strict=False):
            signature = re.sub(rf"\b{parameter.__name__}\b", kind.__name__, signature)
    return signature


def _is_made_by_authors(found: type) -> bool:
    """True for a class that a handler or module makes itself; the others are given to it by the SDK."""
    return found in (capdag.cartridge.Cartridge, capdag.cartridge.CartridgeError)


def _members(found: type) -> Iterator[Function]:
    """Yield the methods of a class in the order of its source, then those it has from what is not documented itself."""
    seen: set[str] = set()
    for owner in found.__mro__:
        if not owner.__module__.startswith("capdag.cartridge"):
            continue
        node = _parse(owner)
        assert isinstance(node, ast.ClassDef)
        for member in node.body:
            if isinstance(member, Function) and member.name not in seen:
                seen.add(member.name)
                yield member


def _function(node: ast.stmt) -> Iterator[str]:
    assert isinstance(node, Function)
    yield f"\n### {node.name}\n\n```python\n{_signature(node)}\n```\n\n{ast.get_docstring(node)}\n"


def _entry(code: str, text: str) -> str:
    """Return one entry of a list: code, and what is said of it."""
    said = textwrap.indent(f"\n{text}\n", "  ", lambda line: line.strip() != "") if text else ""
    return f"\n- `{code}`\n{said}"


def _signature(node: Function) -> str:
    returns = f"{ast.unparse(node.returns)}" if node.returns is not None else ""
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
        return f"{node.name}: {returns}"
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{word} {node.name}({_arguments(node)}) -> {returns}"


def _arguments(node: Function) -> str:
    """Return the arguments as in the source, without self."""
    text = ast.unparse(node.args)
    return text.removeprefix("self").removeprefix(", ")


def _parse(found: object) -> ast.stmt:
    source = textwrap.dedent(inspect.getsource(found))  # type: ignore[arg-type]
    return ast.parse(source).body[0]


def _doc(found: object) -> str:
    return f"{inspect.getdoc(found) or ''}\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(f"no arguments are known; it writes {PAGE.name}")
    PAGE.write_text(build(), encoding="utf-8")
