"""Which cartridges a host has: those whose engines are installed, those of the file, those of the command line."""

from __future__ import annotations

import ctypes
import logging
import math
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from capdag.cartridge.spec import Spec
from capdag.config import CartridgeConfig, Config, ModelsConfig, given
from capdag.errors import ConfigError
from capdag.host import CartridgeRecord

GROUP = "capdag.cartridges"
"""Entry points of this group name a `SPEC` (`capdag.cartridge.spec`)."""

_INTERPRETER = re.compile(r"(python|pypy|node|deno|bun|ruby|perl|php|lua|java|julia|Rscript|(ba|da|z|k|fi)?sh)[\d.]*")
_LAUNCHER = "capdag.cartridge"
"""The module that starts another one as a cartridge: its first argument is what runs."""
_SCRIPT_ENDING = re.compile(r"\.(py|[cm]?js|ts|rb|pl|php|lua|jar|jl|R|sh)$")

_log = logging.getLogger(__name__)


class Roster(NamedTuple):
    """What a host can start, and what the operator should know of what it cannot."""

    records: list[CartridgeRecord]
    notices: list[str]


def read_roster(config: Config, models: Path, commands: Sequence[str] = ()) -> Roster:
    """Return every cartridge that is known, without starting one or importing an engine.

    A cartridge of the file takes the place of an installed one of its name. Raises ConfigError for a command of the
    command line that is none.
    """
    notices: list[str] = []
    named = [_from_table(table) for table in config.cartridge]
    named += _from_commands(commands, {record.id for record in named})
    taken = {record.id for record in named}
    installed = [
        record
        for spec in _installed_specs(notices)
        if spec.name not in taken
        for record in _from_spec(spec, models, config.models)
    ]
    notices += _idle_overrides(config.models, installed)
    records = [*installed, *named]
    if config.trace.dir is not UNSET:
        records = list(traced(records, Path(config.trace.dir), payloads=config.trace.payloads))
    return Roster(records, notices)


def _installed_specs(notices: list[str]) -> Iterator[Spec]:
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            spec = entry.load()
        except (ImportError, AttributeError) as error:
            notices.append(f"cartridge {entry.name} is not served: {entry.value} cannot be loaded ({error})")
            continue
        missing = [module for module in spec.requires if find_spec(module) is None]
        absent = [f"{name} is missing: {remedy}" for name, remedy in spec.libraries if not _loads(name)]
        if missing:
            notices.append(f"cartridge {spec.name} is not served: install it with {_install_command(entry, missing)}")
        elif absent:
            notices.append(f"cartridge {spec.name} is not served: {'; '.join(absent)}")
        else:
            yield spec


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _install_command(entry: EntryPoint, missing: Sequence[str]) -> str:
    """Return the pip command that brings the missing modules: by the extra that names them, if there is one."""
    for line in (entry.dist.requires if entry.dist else None) or []:
        extra = re.fullmatch(r"([\w.-]+).*;.*\bextra\s*==\s*[\"']([\w.-]+)[\"'].*", line)
        if extra and extra[1].replace("-", "_").lower() in missing:
            return f"pip install '{entry.dist.name}[{extra[2]}]'"  # type: ignore[union-attr]
    return f"pip install {' '.join(missing)}"


def _from_spec(spec: Spec, models: Path, wanted: ModelsConfig) -> Iterator[CartridgeRecord]:
    for record in spec.records(models, partial(_model_settings, wanted)):
        model = model_of(record.caps)
        own = _given_for(wanted, model) if model is not None else {}
        yield CartridgeRecord(
            id=record.id,
            command=spec.command,
            caps=record.caps,
            settings=record.settings,
            keep_alive=_seconds(own.get("keep_alive", UNSET)),
            warm=own.get("warm", False),
        )


def _seconds(keep_alive: float | str | msgspec.UnsetType) -> float | None:
    if isinstance(keep_alive, msgspec.UnsetType):
        return None
    return math.inf if isinstance(keep_alive, str) else keep_alive


def model_of(caps: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the id of the model that a cartridge's caps are for; None for a cartridge without one."""
    return next((cap["metadata"]["model"] for cap in caps if cap.get("metadata")), None)


def _model_settings(wanted: ModelsConfig, model: str) -> Mapping[str, Any]:
    """Return what the file sets for the engine of a model."""
    return {key: value for key, value in _given_for(wanted, model).items() if key not in ("keep_alive", "warm")}


def _given_for(wanted: ModelsConfig, model: str) -> Mapping[str, Any]:
    common = {key: value for key, value in given(wanted).items() if key not in ("dir", "overrides")}
    own = wanted.overrides.get(model)
    return {**common, **(given(own) if own else {})}


def _idle_overrides(wanted: ModelsConfig, records: Sequence[CartridgeRecord]) -> Iterator[str]:
    models = [model for record in records if (model := model_of(record.caps))]
    for name in wanted.overrides:
        if name not in models:
            close = get_close_matches(name, models, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(models) or 'none'}"
            yield f'models.overrides."{name}" is for no model that is served; {hint}'


def _from_table(table: CartridgeConfig) -> CartridgeRecord:
    caps = [{"urn": cap} for cap in table.caps]
    return CartridgeRecord(
        id=table.name,
        command=table.command,
        caps=caps,
        settings=table.settings,
        env=table.env,
        keep_alive=_seconds(table.keep_alive),
        warm=table.warm,
        pools=table.pools,
    )


def traced(records: Iterable[CartridgeRecord], folder: Path, *, payloads: bool) -> Iterator[CartridgeRecord]:
    """Yield the records with a recorder in front of each command. Raises ConfigError for a folder that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder} for traces: {error.strerror}") from None
    keep = ["--payloads"] if payloads else []
    for record in records:
        recorder = [sys.executable, "-m", "capdag.trace", *keep, "--into", str(folder.absolute()), record.id, "--"]
        yield msgspec.structs.replace(record, command=[*recorder, *record.command])


def _from_commands(commands: Sequence[str], taken: set[str]) -> Iterator[CartridgeRecord]:
    """Yield a record for each --cartridge, named after its program or script."""
    names = set(taken)
    for command in commands:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--cartridge {command!r} cannot be split as a shell does: {error}") from None
        if not words:
            raise ConfigError("--cartridge '' is empty; give the command that starts the cartridge")
        stem = _stem(_recorded(words))
        name = next(name for name in _numbered(stem) if name not in names)
        names.add(name)
        yield CartridgeRecord(id=name, command=words, caps=[], settings={})


def _recorded(words: Sequence[str]) -> Sequence[str]:
    """Return the command that a recorder (`capdag trace record FILE -- COMMAND`) stands in front of, or `words`."""
    if "--" not in words:
        return words
    end = list(words).index("--")
    is_recorder = "capdag.trace" in words[:end] or any(pair == ("trace", "record") for pair in pairwise(words[:end]))
    return words[end + 1 :] if is_recorder and words[end + 1 :] else words


def _stem(words: Sequence[str]) -> str:
    """Return the name of a command's script or module if an interpreter runs it, of its program otherwise."""
    program = Path(words[0]).name
    named = program
    if _INTERPRETER.fullmatch(program):
        named = _script(words[1:]) or program
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", _SCRIPT_ENDING.sub("", named)).lstrip("._-")
    return stem if re.search("[A-Za-z]", stem) else "cartridge"


def _script(words: Sequence[str]) -> str | None:
    """Return the script or module among an interpreter's words; None if it is told its program as text."""
    for position, word in enumerate(words):
        if word in ("-c", "-e", "--eval"):
            return None
        if word == "-m":
            modules = [module for module in words[position + 1 : position + 3] if module != _LAUNCHER]
            return next(iter(modules), None)
        if not word.startswith("-") and word != "run":
            return Path(word).name
    return None


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1
