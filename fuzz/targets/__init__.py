"""The targets. `check(data)` takes any bytes and returns, or raises AssertionError for a broken invariant; any other
exception is a crash. `seeds()` yields the first inputs.

The memory of one input is bounded: `MEMORY_FLOOR` bytes, and `MEMORY_PER_BYTE` for each of its own. An empty map takes
72 bytes, a map of one pair more than 200.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Protocol

NAMES = ("frames", "frame", "pairs", "items", "machines", "documents", "urns", "bodies")

LONGEST = 2048
"""Bytes of an input: longer ones tell nothing new."""

MEMORY_FLOOR = 4 * 1024 * 1024
MEMORY_PER_BYTE = 128


class Target(Protocol):
    """One module of this package."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def load(name: str) -> Target:
    """Import one target, and of the program only what it needs."""
    module: Target = import_module(f".{name}", __package__)  # type: ignore[assignment]
    return module


def first_inputs(name: str) -> list[bytes]:
    """Return the seeds of a target that are not too long, each once."""
    return [seed for seed in dict.fromkeys(load(name).seeds()) if len(seed) <= LONGEST]
