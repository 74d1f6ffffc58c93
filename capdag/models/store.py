"""The folder of model files: where it is, what is in it, and the names that its models are served under."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import platformdirs

from capdag.errors import ConfigError

from .gguf import GgufError, ModelFacts, read_facts

_NOT_IN_SLUG = re.compile(r"[^a-z0-9._/:-]")
_PART = re.compile(r"-(?P<number>\d{5})-of-\d{5}$")
_ENDING = ".gguf"


class ModelFile(NamedTuple):
    """One model of a folder. `name` is the id that requests use; `size` is in bytes.

    What cannot be served has `facts` None and the reason in `problem`; `name` is text that can be shown all the same.
    """

    name: str
    path: Path
    size: int
    facts: ModelFacts | None
    problem: str

    @property
    def slug(self) -> str:
        """The form of the name that cap URNs carry."""
        return slug_of(self.name)

    @property
    def has_text_path(self) -> bool:
        """Whether the path can be told to others: one that is not UTF-8 is no text."""
        return _shown(self.path) == str(self.path)


def models_dir() -> Path:
    """Return the folder where models are kept unless another is given: `capdag/models` in the user's data folder."""
    return platformdirs.user_data_path("capdag", appauthor=False) / "models"


def slug_of(name: str) -> str:
    """Write a model's id as cap URNs carry it: lower case, and `-` for what is not in `[a-z0-9._/:-]`."""
    return _NOT_IN_SLUG.sub("-", name.lower())


def list_models(directory: Path) -> tuple[ModelFile, ...]:
    """Return the GGUF models in `directory` and its subfolders, by name; of a model in parts the first stands for all.

    A model's id is its path below `directory` without the ending, which counts in capitals too. Reads headers only and
    raises nothing for a broken file, or for what has the name of a model and is no file: that one says so itself. A
    folder that does not exist holds no models.
    """
    paths = (path for path in directory.rglob("*") if path.suffix.lower() == _ENDING)
    names = ((_name_of(path.relative_to(directory)), path) for path in paths)
    return tuple(sorted((_look_at(name, path) for name, path in names if name), key=lambda model: model[:2]))


def check_slugs(models: Iterable[ModelFile]) -> None:
    """Raise ConfigError where two models would be served under one slug."""
    first: dict[str, ModelFile] = {}
    for model in models:
        other = first.setdefault(model.slug, model)
        if other is not model:
            raise ConfigError(
                f"{_shown(other.path)} and {_shown(model.path)} would both be served as {model.slug!r}: "
                "rename or move one of them"
            )


def _name_of(path: Path) -> str:
    """Return the id of a model file, "" for a part that is not the first."""
    name = _shown(path.with_suffix(""))
    part = _PART.search(name)
    if part is None:
        return name
    return name[: part.start()] if int(part["number"]) == 1 else ""


def _look_at(name: str, path: Path) -> ModelFile:
    size = 0
    try:
        if _shown(path) != str(path):
            raise GgufError(f"{_shown(path)}: its name is not UTF-8: rename it")
        size = _size_of(path)
        return ModelFile(name, path, size, read_facts(path), "")
    except GgufError as error:
        return ModelFile(name, path, size, None, str(error))


def _size_of(path: Path) -> int:
    """Return the bytes of a file. Raises GgufError for what is none."""
    try:
        if path.is_dir():
            raise GgufError(f"{path} is a folder with the name of a model: rename it, or put a file in its place")
        return path.stat().st_size
    except OSError as error:
        if path.is_symlink():
            raise GgufError(f"{path} is a link that leads to no file ({error.strerror}): remove or mend it") from None
        raise GgufError(f"{path} cannot be read: {error.strerror}") from None


def _shown(path: Path) -> str:
    """Return a path as text that can be shown and sent; bytes that are no UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
