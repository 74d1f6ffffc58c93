"""What the launcher starts: the module that is meant, wherever it was started, and a word for what is none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

from capdag.cartridge import launcher

PACKAGE = "a_parrot"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a project's folder, with the current folder around it, as `python -m` would have them."""
    (tmp_path / PACKAGE / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / PACKAGE / "__init__.py").touch()
    (tmp_path / PACKAGE / PACKAGE / "part.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path / PACKAGE
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


class Editable:
    """Finds an installed package after all that is on the path, as `pip install -e` has it."""

    def __init__(self, project: Path) -> None:
        self._path = [str(project)]

    def find_spec(self, name: str, _path: object = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self._path) if name == PACKAGE else None


def origin(name: str) -> str | None:
    launcher._uncover(PACKAGE)
    found = importlib.util.find_spec(name)
    return None if found is None else found.origin


def test_a_projects_folder_does_not_hide_the_package_that_is_installed_from_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(project)])
    found = importlib.util.find_spec(PACKAGE)
    assert found is not None
    assert found.origin is None, "the folder comes first"
    assert origin(f"{PACKAGE}.part") == str(project / PACKAGE / "part.py")


def test_the_current_folder_stays_on_the_path_for_what_is_only_there(project: Path) -> None:
    before = list(sys.path)
    (project / "lone.py").touch()
    assert origin(f"{PACKAGE}.lone") == str(project / "lone.py")
    assert sys.path == before


def test_a_module_here_comes_before_an_installed_package(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(project)])
    here = project.with_suffix(".py")
    here.touch()
    assert origin(PACKAGE) == str(here)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("./odd.py", "'./odd.py' is a file: give the name of its module, 'odd'\n"),
        ("odd.py", "'odd.py' is a file: give the name of its module, 'odd'\n"),
        ("/my/odd.py", "'/my/odd.py' is a file: give the name of its module, 'odd', with its folder in {}\n"),
        (".odd", "'.odd' is not the name of a module: give it in full, as in PACKAGE.MODULE\n"),
        ("", "'' is not the name of a module: give it in full, as in PACKAGE.MODULE\n"),
    ],
)
def test_what_is_no_name_of_a_module_says_what_is(module: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.launch(module) == 2
    assert capsys.readouterr().err == f"cartridge: {said.format('PYTHONPATH: PYTHONPATH=/my')}"
