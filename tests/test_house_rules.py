"""The rules of the house, held by tools: style, types, walls between rooms, file sizes, README and CI in step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
LONGEST_FILE = 450


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=["lint", "format", "types", "walls"],
)
def test_tool_is_content(command: list[str]) -> None:
    done = subprocess.run([SCRIPTS / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_stay_small() -> None:
    sizes = {
        path: len(path.read_text().splitlines())
        for room in ("capdag", "cartridges")
        for path in ROOT.glob(f"{room}/**/*.py")
    }
    assert {str(path): size for path, size in sizes.items() if size > LONGEST_FILE} == {}


def test_the_package_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import capdag; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['capdag']"


def test_ci_runs_the_command_of_the_readme() -> None:
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line and not line.startswith(("#", "cd ", "set "))
    ]
    assert len(commands) == 1
    assert commands[0] in (ROOT / "README.md").read_text().splitlines()
