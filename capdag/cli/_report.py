"""The lines by which a server says what it serves, where, and what it does not serve and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from capdag.host import CartridgeRecord
from capdag.models import ModelFile, list_models, models_dir

from ._folders import HAS_UNIX_SOCKETS
from ._http import Addresses
from ._roster import Roster, model_of
from ._saying import say


def show_roster(roster: Roster, folder: Path) -> None:
    """Say what a host will serve and what it will not."""
    for line in _describe(roster, folder, list_models(folder)):
        say(line)


def show_addresses(addresses: Addresses) -> None:
    """Say where a gateway listens: the last lines of its start."""
    if HAS_UNIX_SOCKETS:
        say(f"capdag ps reaches it by {addresses.admin}")
    say(f"serving at {addresses.url}/v1 (Ctrl-C stops)")


def _describe(roster: Roster, folder: Path, files: tuple[ModelFile, ...]) -> Iterator[str]:
    by_model = {model: record for record in roster.records if (model := model_of(record.caps))}
    yield f"models in {folder}:"
    yield from (f"  {_describe_file(file, by_model.get(file.name))}" for file in files)
    if not files:
        yield show_no_models(folder)
    names = {file.name for file in files}
    for record in roster.records:
        if model_of(record.caps) not in names:
            yield f"cartridge {record.id}: {shlex.join(record.command)}"
    yield from roster.notices


def _describe_file(file: ModelFile, record: CartridgeRecord | None) -> str:
    if file.problem:
        return f"{file.name}  BROKEN: {file.problem}"
    if record is None:
        return f"{file.name}  {show_size(file.size)}  NOT SERVED: no installed cartridge takes it"
    context = next((cap["metadata"].get("context_length") for cap in record.caps if cap.get("metadata")), None)
    facts = [show_size(file.size), *([f"context {context:,} tokens"] if context else []), f"by {record.id}"]
    return "  ".join([file.name, *facts])


def show_no_models(folder: Path) -> str:
    """Return the line that stands for the models of a folder that has none, with the remedy for that folder."""
    other = "" if folder == models_dir() else f" --models {shlex.quote(str(folder))}"
    return f"  none; `capdag models fetch{other}` brings a small one, or put a .gguf file there"


def show_size(size: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
