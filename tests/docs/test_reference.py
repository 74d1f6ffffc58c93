"""The reference is that of the code."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import DOCS

ROOT = DOCS.parent


def test_the_reference_is_that_of_the_code() -> None:
    code = "import runpy; print(runpy.run_path('docs/build_reference.py')['build'](), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    same = done.stdout == (DOCS / "cartridge-reference.md").read_text(encoding="utf-8")
    assert same, "docs/cartridge-reference.md is old: run python docs/build_reference.py"
