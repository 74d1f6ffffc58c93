"""Run files: what a host leaves on disk about itself, and the sweep of what dead hosts left.

Contract: "Processes", row guardian: the sweep covers a host that died together with its guardian. At start a host
calls `sweep_stale_runs`, opens its guardian, and calls `write_run_file` before it binds its first socket.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ._guardian_main import RUN_ID_VARIABLE, carriers, kill_carriers
from .guardian import GUARDIAN_VARIABLE, Guardian

GUARDIAN_PATIENCE = 1.0
"""Seconds that a dead host's guardian, if it lives, has for finishing its work before the sweep takes over."""

_log = logging.getLogger(__name__)


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host's run. `host_start` is in clock ticks since the boot that `boot` names."""

    host_pid: int
    host_start: int
    boot: str
    run_id: str
    sockets: list[str]


class SweptRun(msgspec.Struct, frozen=True):
    """What the sweep found of one dead host: the processes it killed and the sockets it removed."""

    host_pid: int
    run_id: str
    killed: list[int]
    removed: list[Path]

    def describe(self) -> str:
        """Return one line for the operator."""
        return (
            f"cleaned up after the host with process id {self.host_pid}, which was killed:"
            f" {len(self.killed)} processes ended {self.killed}, {len(self.removed)} sockets removed"
            f" {[str(path) for path in self.removed]}"
        )


def write_run_file(run_dir: Path, guardian: Guardian, sockets: Sequence[Path] = ()) -> Path:
    """Write this host's run file and have the guardian remove it at the end; return its path.

    `sockets` are those that the host is about to bind; tell the guardian of each only once it is bound, since a path
    that could not be bound is another's. The folder is made if needed, for this user alone.
    """
    run = RunFile(
        host_pid=os.getpid(),
        host_start=_start_of(os.getpid()) or 0,
        boot=_boot(),
        run_id=guardian.run_id,
        sockets=[str(path.absolute()) for path in sockets],
    )
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = run_dir / f"run-{guardian.run_id}.json"
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(msgspec.to_builtins(run)))
    guardian.add_path(file)
    unfinished.replace(file)
    return file


def sweep_stale_runs(run_dir: Path) -> list[SweptRun]:
    """End what hosts that are dead left running, remove their sockets, and return what was done, a record a host.

    A host is dead if no process has its id and start time in this boot. Processes are killed by the run id in their
    environment and by nothing else, and only sockets are removed. Of several sweeps at once, one does each run.
    Blocks: a few milliseconds, 3 s a run at worst. Does nothing where there is no /proc.
    """
    if _start_of(os.getpid()) is None:
        return []
    swept = []
    for file in sorted(run_dir.glob("run-*.json")):
        run = _read(file)
        if run is None or _lives(run):
            continue
        try:
            file.unlink()
        except FileNotFoundError:  # its guardian or another sweep was faster, and has what it held
            continue
        swept.append(_sweep(run))
    return swept


def _read(file: Path) -> RunFile | None:
    try:
        return msgspec.convert(json.loads(file.read_bytes()), RunFile)
    except FileNotFoundError:
        return None
    except (ValueError, msgspec.ValidationError) as error:
        _log.warning("run file %s cannot be read (%s) and is left alone; remove it if no host uses it", file, error)
        return None


def _lives(run: RunFile) -> bool:
    return run.boot == _boot() and run.host_start == _start_of(run.host_pid)


def _sweep(run: RunFile) -> SweptRun:
    deadline = time.monotonic() + GUARDIAN_PATIENCE
    while (guardians := list(carriers(GUARDIAN_VARIABLE, run.run_id))) and time.monotonic() < deadline:
        time.sleep(0.01)
    if guardians:
        kill_carriers(GUARDIAN_VARIABLE, run.run_id)
    killed = kill_carriers(RUN_ID_VARIABLE, run.run_id)
    removed = [path for path in map(Path, run.sockets) if _remove_socket(path)]
    return SweptRun(host_pid=run.host_pid, run_id=run.run_id, killed=sorted(killed), removed=removed)


def _remove_socket(path: Path) -> bool:
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
            return True
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("socket %s of a dead host cannot be removed: %s", path, error.strerror)
    return False


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if there is none, it is a zombie, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    state, start = fields[0], fields[19]
    return None if state in "ZX" else int(start)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
