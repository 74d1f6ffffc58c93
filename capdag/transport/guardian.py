"""The guardian: a small process that ends what a host leaves when the host itself is killed.

Contract: "Processes", row guardian. Nothing inside a process can act on its own SIGKILL, and the parent-death signal
follows the thread that spawned. So one isolated interpreter per host waits for the end of a pipe that only the host
holds; then it kills the process groups it was told of and every process that carries the run id in its environment,
and removes the files it was told of. Its own death is made good at the next message; that of both at the same time
by the sweep at the next start (`capdag.transport.runs`).
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from . import _guardian_main
from ._exits import peek_exit, wait_for_exit
from .process import SpawnError

CLOSE_LIMIT = 5.0
"""Seconds that the guardian has for its last search after the pipe has closed, before it is killed."""

GUARDIAN_VARIABLE = "CAPDAG_GUARDIAN_OF"
"""Names the run in the environment of its guardian, which must not carry the run id that it kills by."""

_log = logging.getLogger(__name__)


def new_run_id() -> str:
    """Return an id for one run of a host, unique for all time: processes are killed by it."""
    return uuid.uuid4().hex


@asynccontextmanager
async def open_guardian(run_id: str) -> AsyncIterator[Guardian]:
    """Guard what is spawned in the block, under `run_id` (see `new_run_id`).

    At the end of the block, however it comes, the guardian kills what it still knows of and what carries the run id,
    removes the files it still knows of, and is reaped: in `CLOSE_LIMIT` seconds, shielded from cancellation.

    Raises `SpawnError` if the guardian cannot be started, `ValueError` for a run id that is not one word.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", run_id):
        raise ValueError(f"run id {run_id!r} must consist of letters, digits, - and _: use new_run_id()")
    guardian = _FileGuardian(run_id) if sys.platform == "win32" else Guardian(run_id)
    try:
        yield guardian
    finally:
        await guardian._close()


class Guardian:
    """The host's end of the guardian's pipe: see `open_guardian`.

    Its methods never block. Where a dead guardian cannot be replaced this is logged, and tried again at the next call.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._entries: dict[str, None] = {}  # in the order told
        self._replaced: list[subprocess.Popen[bytes]] = []
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The id of the present guardian process; another after it has been replaced."""
        return self._process.pid

    def add_group(self, pgid: int) -> None:
        """Have the process group killed when this process ends."""
        if pgid <= 1:
            raise ValueError(f"{pgid} is no process group that may be killed")
        self._add(str(pgid))

    def remove_group(self, pgid: int) -> None:
        """Forget a process group; call it while the group's id cannot be given to another."""
        self._remove(str(pgid))

    def add_path(self, path: Path) -> None:
        """Have a file (a socket, a pid file) removed when this process ends. Call it once the file is ours."""
        self._add(str(path.absolute()))

    def remove_path(self, path: Path) -> None:
        """Forget a file."""
        self._remove(str(path.absolute()))

    def _add(self, entry: str) -> None:
        self._entries[entry] = None
        self._tell(f"+{entry}")

    def _remove(self, entry: str) -> None:
        if entry in self._entries:
            del self._entries[entry]
            self._tell(f"-{entry}")

    def _tell(self, message: str) -> None:
        """Write one message, or give the whole list to a new guardian if this one is dead or does not read."""
        data = os.fsencode(message) + b"\0"
        assert self._process.stdin is not None
        try:
            if os.write(self._process.stdin.fileno(), data) == len(data):
                return
        except (BrokenPipeError, BlockingIOError):
            pass
        self._replace()

    def _replace(self) -> None:
        old = self._process
        _log.warning("the guardian (process %d) is dead or does not read; it is replaced", old.pid)
        # Killed before its pipe closes: one that was merely stopped would take the close for the host's end.
        old.kill()
        try:
            self._process = self._start()
        except SpawnError as error:
            _log.error("the host is not guarded until the next change of its processes: %s", error)
            return
        _close_pipe(old)
        self._replaced = [process for process in (*self._replaced, old) if process.poll() is None]

    def _start(self) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("_guardian_main.py")
        inherited = {name: value for name, value in os.environ.items() if name != _guardian_main.RUN_ID_VARIABLE}
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), self.run_id, *self._entries],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                close_fds=True,
                cwd="/",
                env={**inherited, GUARDIAN_VARIABLE: self.run_id},
                start_new_session=True,
            )
        except OSError as error:
            raise SpawnError(
                f"cannot start the guardian with {sys.executable} ({error.strerror}); check that this interpreter"
                " may be run and that the limits on processes, memory and descriptors leave room for one more"
            ) from error
        assert process.stdin is not None
        if sys.platform != "win32":
            os.set_blocking(process.stdin.fileno(), False)
        return process

    async def _close(self) -> None:
        _close_pipe(self._process)
        with trio.move_on_after(CLOSE_LIMIT, shield=True):
            await wait_for_exit(self._process)
        for process in (*self._replaced, self._process):
            await _kill_and_reap(process)
        self._entries.clear()


class _FileGuardian(Guardian):
    """Where every process is in a job that is killed with this process (Windows): only files are to be removed."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._entries = {}

    def _tell(self, message: str) -> None:
        """Do nothing: nobody needs to know."""

    async def _close(self) -> None:
        self._remove_files()
        await trio.lowlevel.checkpoint()

    def _remove_files(self) -> None:
        for entry in reversed(self._entries):
            if not entry.isdigit():
                Path(entry).unlink(missing_ok=True)
        self._entries.clear()


async def _kill_and_reap(process: subprocess.Popen[bytes]) -> None:
    if peek_exit(process) is None:
        process.kill()
    with trio.move_on_after(CLOSE_LIMIT, shield=True):
        await wait_for_exit(process)
        process.wait()


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
