"""The folder of model files: where it is, what is in it, and the names that its models are served under."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import platformdirs

from capdag.errors import ConfigError

from .gguf import GgufError, ModelFacts, read_facts

_NOT_IN_SLUG = re.compile(r"[^a-z0-9._/:-]")
_PART = re.compile(r"-(?P<number>\d{5})-of-\d{5}$")


class ModelFile(NamedTuple):
    """One model of a folder. `name` is the id that requests use; `size` is in bytes.

    A file that cannot be served has `facts` None and the reason in `problem`.
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


def models_dir() -> Path:
    """Return the folder where models are kept unless another is given: `capdag/models` in the user's data folder."""
    return platformdirs.user_data_path("capdag", appauthor=False) / "models"


def slug_of(name: str) -> str:
    """Write a model's id as cap URNs carry it: lower case, and `-` for what is not in `[a-z0-9._/:-]`."""
    return _NOT_IN_SLUG.sub("-", name.lower())


def list_models(directory: Path) -> tuple[ModelFile, ...]:
    """Return the GGUF models in `directory` and its subfolders, by name; of a model in parts the first stands for all.

    A model's id is its path below `directory` without the ending. Reads headers only and raises nothing for a broken
    file: that one says so itself. A folder that does not exist holds no models.
    """
    names = ((_name_of(path.relative_to(directory)), path) for path in directory.rglob("*.gguf") if path.is_file())
    return tuple(sorted(_look_at(name, path) for name, path in names if name))


def check_slugs(models: Iterable[ModelFile]) -> None:
    """Raise ConfigError where two models would be served under one slug."""
    first: dict[str, ModelFile] = {}
    for model in models:
        other = first.setdefault(model.slug, model)
        if other is not model:
            raise ConfigError(
                f"{other.path} and {model.path} would both be served as {model.slug!r}: rename or move one of them"
            )


def _name_of(path: Path) -> str:
    """Return the id of a model file, "" for a part that is not the first."""
    name = path.with_suffix("").as_posix()
    part = _PART.search(name)
    if part is None:
        return name
    return name[: part.start()] if int(part["number"]) == 1 else ""


def _look_at(name: str, path: Path) -> ModelFile:
    size = path.stat().st_size
    try:
        return ModelFile(name, path, size, read_facts(path), "")
    except GgufError as error:
        return ModelFile(name, path, size, None, str(error))
