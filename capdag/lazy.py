"""Packages whose names are imported when they are first asked for.

A cartridge pays for every module it imports before it can say HELLO, and needs a third of what the core has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules
from typing import Any


def exports(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`: `names` maps modules, of it or others, to what they give, as words."""
    homes = {name: module for module, words in names.items() for name in words.split()}

    def find(name: str) -> Any:
        try:
            home = homes[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        value = getattr(import_module(home, package), name)
        setattr(modules[package], name, value)  # the next look-up finds it without us
        return value

    return find
