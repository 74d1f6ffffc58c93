"""How a cartridge package tells what it can serve, without its engine (entry-point group `capdag.cartridges`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One process to be: its id (`NAME` or `NAME/SLUG`), the cap objects known before its first start, and the
    settings it is started with."""

    id: str
    caps: list[Mapping[str, Any]]
    settings: Mapping[str, Any]


SettingsOf = Callable[[str], Mapping[str, Any]]
"""What the operator has set for a model, by its id."""


class Spec(NamedTuple):
    """A cartridge package.

    `command` starts it; `requires` names the modules that must be importable for that, and `libraries` the shared
    libraries that its engine needs from the system, each with what brings it. `records` lists the processes it offers
    for a folder of models and what is set for each.
    """

    name: str
    command: tuple[str, ...]
    requires: tuple[str, ...]
    records: Callable[[Path, SettingsOf], list[Record]]
    libraries: tuple[tuple[str, str], ...] = ()
