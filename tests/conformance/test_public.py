"""A cartridge on the public package passes as far as its own faults allow (protocol-spec/interop.md, Cartridges)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capdag.conformance import Report, Settings, Verdict, as_text, check

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peer" / "bin" / "python"
COMMAND = [str(PYTHON), str(ROOT / "tests" / "interop" / "peer_cartridge.py")]

SILENT = {
    "bad-index": "takes CHUNKs in any order",
    "bad-count": "does not look at chunk_count",
    "bad-order": "does not look for the stream of a CHUNK",
    "same-rid": "lets a second REQ replace the first in silence",
}
"""Faults by which what is waited for never comes."""

SPOKEN = {
    "frame-size": "does not cut values at max_frame",
    "seq": "uses up the number of a frame that is too large to be sent",
    "credit-clamp": "lets a grant lift a sender above its window",
    "no-cap": "says internal where the requester has to act",
    "missing-argument": "takes an argument that never came for an empty one",
    "bad-checksum": "says HANDLER_ERROR",
    "bad-end": "takes an argument that never ended",
    "eof-busy": "waits for its handlers for ever when stdin has ended",
}

PASSED = [
    "hello-pools", "identity-text", "manifest", "manifest-identity", "manifest-urns", "manifest-arguments", "answer",
    "empty", "worker", "items", "item-meta", "outputs", "checksum", "stream-order", "credit-window", "credit-again",
    "credit-grants", "cancel-idle", "cancel-blocked", "cancel-isolation", "strays", "no-handler", "bad-payload",
    "body-taken-back", "less-said", "later-keys", "heartbeat", "heartbeat-load", "pools-active", "unknown-pool",
]  # fmt: skip
"""Those of the others that share a process: each start of the public package takes most of a second."""


def checked(only: list[str], timeout: float) -> Report:
    if not PYTHON.exists():
        pytest.fail("the public package has no environment here: run the README's test command, which makes it")
    # Its cap `pour` answers with a list, and looks at no argument.
    settings = Settings(
        cap="pour", input=b"", timeout=timeout, exit_timeout=1.0, settle=0.02, env={"INTEROP_NAME": "peer"}
    )
    return check(COMMAND, settings, only=only)


def failed(report: Report) -> set[str]:
    return {result.case.id for result in report.of(Verdict.FAIL)}


def test_the_public_package_fails_by_its_own_faults_alone() -> None:
    report = checked([*SPOKEN, *PASSED], 10.0)
    assert failed(report) == set(SPOKEN), as_text(report)
    assert not report.of(Verdict.SKIP), as_text(report)


def test_what_the_public_package_does_not_refuse() -> None:
    report = checked([*SILENT], 0.3)
    assert failed(report) == set(SILENT), as_text(report)


def test_the_faults_are_written_down() -> None:
    page = (ROOT / "protocol-spec" / "interop.md").read_text()
    section = page[page.index("## Cartridges") :].split("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE) == sorted([*SILENT, *SPOKEN])
