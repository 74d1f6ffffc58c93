"""Cartridges in three languages pass `capdag check` whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from capdag.conformance import Settings, Verdict, as_text, check

EXAMPLES = Path(__file__).parents[2] / "protocol-spec" / "examples"
SETTINGS = Settings(settle=0.02)

ECHOES_HAVE_NOT = [
    "calls", "worker", "items", "item-start", "item-meta", "log-meta", "cancel-working", "cancel-queued", "queue",
]  # fmt: skip
"""What the examples are too small for: calls, lists, LOGs, sizes of pools."""


def passes(command: list[str], skipped: list[str]) -> None:
    report = check(command, SETTINGS)
    assert report.passed, as_text(report)
    assert [result.case.id for result in report.of(Verdict.SKIP)] == skipped, as_text(report)


def test_ours() -> None:
    passes([sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main"], ["calls"])


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_example_in_c(tmp_path: Path) -> None:
    program = tmp_path / "echo"
    source = EXAMPLES / "c" / "echo.c"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run(["cc", *flags, "-o", program, source], check=True, capture_output=True, text=True)
    passes([str(program)], ECHOES_HAVE_NOT)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_example_in_node() -> None:
    passes(["node", str(EXAMPLES / "node" / "echo.js")], ECHOES_HAVE_NOT)
