"""Running `capdag` as its users do: as a process, with a runtime folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import psutil

START_LIMIT = 30.0
"""Seconds that a server may take until it listens, on a loaded machine."""


def environment(runtime: Path) -> dict[str, str]:
    """Return the environment of a command that keeps its sockets in `runtime`."""
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "XDG_DATA_HOME": str(runtime / "data"), "COLUMNS": "100"}


def capdag(
    runtime: Path, *arguments: str, data: bytes = b"", limit: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "capdag", *arguments]
    return subprocess.run(command, input=data, capture_output=True, env=environment(runtime), timeout=limit)


class Server:
    """A running `capdag serve` (or host, or gateway)."""

    def __init__(self, runtime: Path, arguments: tuple[str, ...]) -> None:
        self.runtime = runtime
        self.lines: list[str] = []
        self._new: Queue[str] = Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capdag", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(runtime),
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for a line of output that matches."""
        deadline = time.monotonic() + START_LIMIT
        seen = 0
        while True:
            for line in self.lines[seen:]:
                seen += 1
                if found := re.search(pattern, line):
                    return found
            try:
                self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"no line with {pattern!r} in:\n{self.output}") from None

    @property
    def url(self) -> str:
        """Where it listens, as http://ADDRESS:PORT."""
        return self.wait_for(r"serving at (http://\S+)/v1")[1]

    @property
    def output(self) -> str:
        """Everything it has written, for messages."""
        return "\n".join(self.lines)

    @property
    def folder(self) -> Path:
        """Where its sockets and run files are."""
        return self.runtime / "capdag"

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that it has started, directly or not."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def find(self, word: str) -> psutil.Process:
        """Return the one descendant whose command line holds `word`."""
        (found,) = [process for process in self.descendants() if word in " ".join(process.cmdline())]
        return found

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self, limit: float = 15.0) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(limit)
        self._reader.join(limit)
        return code


@contextmanager
def serving(runtime: Path, *arguments: str, command: str = "serve") -> Iterator[Server]:
    """Run a server for the length of the block; whatever is left of it then is killed."""
    server = Server(runtime, (command, *arguments))
    try:
        yield server
    except BaseException:
        print(server.output)  # pytest shows it with the failure
        raise
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.ended()
        assert server.process.stdout is not None
        server.process.stdout.close()


def eventually(condition: Callable[[], bool], limit: float, what: str) -> None:
    """Wait until the condition holds; fail after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit:g} s: {what}"
        time.sleep(0.02)
