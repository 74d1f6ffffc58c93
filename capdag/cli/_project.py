"""A new cartridge project: what its files hold, from the templates beside this module."""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from string import Template

from capdag.errors import ConfigError

from ._new_caps import NewCap, quote
from ._roster import GROUP

_TEMPLATES = Path(__file__).with_name("templates")
_LONGEST_NAME = 64
_OURS = ("capdag", "cartridges", "tests")


def check_form(name: str) -> None:
    """Raise ConfigError, with a better name where there is one, if a Python package could not be called so."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        better = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_0123456789")
        hint = f": try {better[:_LONGEST_NAME]!r}" if better else ""
        raise ConfigError(f"{name!r} must be lower-case letters, digits and _, a letter first, as in Python{hint}")
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"{name[:20]}… has {len(name)} letters: {_LONGEST_NAME} are the most, choose a shorter name")


def check_name(name: str) -> None:
    """Raise ConfigError, with the reason, if a project of this name would get in the way of what is here."""
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is Python's own: the package could not be imported; try 'my_{name}'")
    if name in _OURS or find_spec(name) is not None:
        raise ConfigError(f"a package {name!r} is here already, and one would hide the other: choose another name")
    if name in entry_points(group=GROUP).names:
        raise ConfigError(f"a cartridge {name!r} is installed already: choose another name")


def write_project(name: str, caps: Sequence[NewCap], *, is_async: bool) -> list[Path]:
    """Write a project into a new folder `name` here, and return its files. Without `caps` it is a chat cartridge.

    Raises ConfigError for a name that cannot be, and for a folder that is there or cannot be written.
    """
    check_form(name)
    folder = Path(name).absolute()
    if folder.exists():
        raise ConfigError(f"{folder} is there already: choose another name, or remove it")
    check_name(name)
    texts = _texts(folder, caps, is_async=is_async)
    try:
        folder.mkdir()
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}") from None
    try:
        return [_write(folder / file, text) for file, text in texts.items()]
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}; nothing is left of {folder}") from None


def _write(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def _texts(folder: Path, caps: Sequence[NewCap], *, is_async: bool) -> dict[str, str]:
    """Return what each file of the project holds."""
    name, kind = folder.name, "caps" if caps else "chat"
    shell = "async_" if is_async and not caps else ""
    facts = {
        "name": name,
        "description": f"A cartridge that serves {', '.join(cap.alias for cap in caps) or 'a chat model'}.",
        "name_text": json.dumps(name),
        "module_text": json.dumps(f"{name}.cartridge"),
        "python_text": json.dumps(sys.executable, ensure_ascii=False),
        "folder_text": json.dumps(str(folder), ensure_ascii=False),
        **_code(caps, is_async=is_async),
    }

    def filled(template: str) -> str:
        return Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(facts)

    facts["files"], facts["try_it"] = filled(f"{kind}/files.txt").rstrip(), filled(f"{kind}/try_it.txt").rstrip()
    texts = {
        "README.md": filled("README.md.txt"),
        "pyproject.toml": filled("pyproject.toml.txt"),
        "capdag.toml": filled("capdag.toml.txt"),
        ".gitignore": filled("gitignore.txt"),
        f"{name}/__init__.py": filled(f"{kind}/__init__.py.txt"),
        f"{name}/cartridge.py": filled(f"{kind}/{shell}cartridge.py.txt"),
        f"{name}/py.typed": "",
        f"tests/test_{name}.py": filled(f"{kind}/test.py.txt"),
    }
    return texts if caps else {**texts, f"{name}/engine.py": filled(f"chat/{shell}engine.py.txt")}


def _code(caps: Sequence[NewCap], *, is_async: bool) -> dict[str, str]:
    """Return the code that stands for the caps."""
    constants = [cap.constant for cap in caps]
    return {
        "constants": "\n".join(f"{cap.constant} = {quote(str(cap.urn))}" for cap in caps),
        "constant_list": "\n".join(f"    {constant}," for constant in constants),
        "imports": "\n".join(f"    {constant}," for constant in sorted([*constants, "NAME"])),
        "names": "AsyncRequest, Cartridge" if is_async else "Cartridge, Request",
        "handlers": "".join(f"\n\n{cap.handler(is_async=is_async)}\n" for cap in caps),
        "rows": "\n".join(cap.row() for cap in caps),
        "first_alias": caps[0].alias if caps else "",
    }
