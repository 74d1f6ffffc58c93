"""What handlers have started and left behind when a command ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def kill_children() -> None:
    """Kill the processes that were started here and are still in our process group, as a host kills the whole group.
    A command shares its group with the others of a pipeline, so that it looks for its own (on Linux)."""
    if sys.platform != "win32":
        group = os.getpgrp()
        for pid in list(_descendants("self")):
            with suppress(OSError):
                if os.getpgid(pid) == group:
                    os.kill(pid, signal.SIGKILL)


def _descendants(pid: str) -> Iterator[int]:
    """Yield those that a process has started, and theirs."""
    for thread in Path("/proc", pid, "task").glob("*/children"):
        with suppress(OSError):
            for child in thread.read_text().split():
                yield from _descendants(child)
                yield int(child)
