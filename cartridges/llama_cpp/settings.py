"""The settings of one llama.cpp process: which model, and how much room its requests have."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from capdag.errors import ConfigError

OPENMP = ("libgomp.so.1", "install the GNU OpenMP library (Debian, Ubuntu: sudo apt install libgomp1)")
"""The one library that the engine's wheel leaves to the system, and what brings it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model` is the id that requests use, `path` its GGUF file. `context` is the tokens of one request, prompt and
    answer together; `slots` how many requests run at once, each with its own context. `threads` None: one less than
    there are cores."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    path: Annotated[str, msgspec.Meta(min_length=1)]
    context: Annotated[int, msgspec.Meta(ge=64, le=1_048_576)] = 2048
    slots: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    threads: Annotated[int, msgspec.Meta(ge=1, le=512)] | None = None

    @property
    def engine_threads(self) -> int:
        """Threads that compute. With all cores busy in it, llama.cpp's barriers stall whenever a neighbour runs."""
        return self.threads or max(1, _cores() - 1)


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))  # a container may have fewer than the machine
    else:  # noqa: RET505 - type checkers know which branch is for which system
        return os.cpu_count() or 1


def read_settings(table: Mapping[str, Any]) -> Settings:
    """Read the table that the host gave. Raises ConfigError naming the setting, the value seen and what it must be."""
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$.")
        key = at.rstrip("`")
        seen = f"{key} is {table[key]!r}: " if key in table else ""
        known = ", ".join(Settings.__struct_fields__)
        raise ConfigError(f"llama-cpp settings: {seen}{what}. Known settings: {known}.") from None
