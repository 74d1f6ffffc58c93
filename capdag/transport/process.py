"""A cartridge's process: spawned on the loop's own thread, owned from its first moment, always ended and reaped.

Contract: "Processes". The process leads a session and so a process group of its own; whoever of that group is left
when the process ends is killed before the reap, while the id of the group cannot belong to anyone else.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

import msgspec
import trio

from capdag.errors import AttributionClass, CapdagError

from ._exits import ExitStatus, OomKills, find_oom_counter, peek_exit, wait_for_exit
from ._groups import KILL, ProcessGroup, start_in_group
from ._guardian_main import RUN_ID_VARIABLE
from ._pipes import ChildPipe, close_pipe, make_ready, open_pipe

if TYPE_CHECKING:
    from .guardian import Guardian

REAP_LIMIT = 10.0
"""Seconds that a process has for leaving after SIGKILL, before it is given up (one in uninterruptible sleep)."""

_OMP_THREADS = "OMP_NUM_THREADS"


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))  # a container may have fewer than the machine
    else:  # noqa: RET505 - type checkers know which branch is for which system
        return os.cpu_count() or 1


ENGINE_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "GOMP_SPINCOUNT": "0",
        _OMP_THREADS: str(max(1, _cores() - 1)),
        "ORT_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
)
"""What every engine gets: no spinning in idle threads, one core left to the host, no calls home."""

_log = logging.getLogger(__name__)
_oom_kills = OomKills(find_oom_counter())


class SpawnError(CapdagError):
    """A program could not be started. The text names the command, the reason and the remedy."""

    code = "SPAWN_FAILED"
    attribution = AttributionClass.ENVIRONMENT


def child_environment(own: Mapping[str, str], run_id: str) -> dict[str, str]:
    """Return the environment of a cartridge: this process's, the engines', the cartridge's `own`, and the run id.

    Later ones win, except that an OMP_NUM_THREADS of this process stands over the engines' default.
    """
    inherited = dict(os.environ)
    engines = {name: value for name, value in ENGINE_ENVIRONMENT.items() if name != _OMP_THREADS}
    threads = inherited.get(_OMP_THREADS, ENGINE_ENVIRONMENT[_OMP_THREADS])
    return {**inherited, **engines, _OMP_THREADS: threads, **own, RUN_ID_VARIABLE: run_id}


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    guardian: Guardian | None = None,
) -> ChildProcess:
    """Start `command` in a session of its own with three pipes, and tell `guardian` its group at once.

    Synchronous: there is no await at which a cancellation could lose the process. `env` is the whole environment;
    with a guardian it must carry the guardian's run id, as `child_environment` gives it.

    Raises `SpawnError` if the program cannot be started, `ValueError` if the run id is missing from `env`.
    """
    if guardian is not None and env.get(RUN_ID_VARIABLE) != guardian.run_id:
        raise ValueError(f"env has no {RUN_ID_VARIABLE}={guardian.run_id}: build it with child_environment()")
    if not command:
        raise SpawnError("cannot start an empty command: give the program and its arguments as a list")
    at_spawn = _oom_kills.count()
    # The pipes are opened here: where descriptors run out, Pythons before 3.11.4 lose those they have opened.
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            (to_child, stdin), (from_child, stdout), (complaints, stderr) = (
                _open_pipe(ours, theirs, reads=reads) for reads in (False, True, True)
            )
            popen, group = start_in_group(list(command), stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd)
        except (OSError, ValueError) as error:
            raise SpawnError(f"cannot start {shlex.join(command)}: {_reason(error, command[0], cwd)}") from error
        if guardian is not None:
            guardian.add_group(popen.pid)
        child = ChildProcess(popen, group, (to_child, from_child, complaints), guardian, at_spawn)
        ours.pop_all()
    return child


def _open_pipe(ours: ExitStack, theirs: ExitStack, *, reads: bool) -> tuple[ChildPipe, IO[bytes]]:
    own, other = open_pipe(reads=reads)
    ours.callback(own.close)
    theirs.callback(other.close)
    return own, other


def _reason(error: OSError | ValueError, program: str, cwd: str | os.PathLike[str] | None) -> str:
    if not isinstance(error, OSError):
        return f"{error}; correct the command, its folder or its environment"
    if cwd is not None and error.filename == cwd:
        return f"its working folder {os.fspath(cwd)} cannot be entered ({error.strerror}); create it or correct cwd"
    match error.errno:
        case errno.ENOENT if Path(program).is_file():
            return f"the interpreter on the first line of {program} does not exist; install it or correct that line"
        case errno.ENOENT:
            return f"there is no program {program}; install it, or give its full path"
        case errno.EACCES if not program:
            return "the name of the program is empty; say what to run"
        case errno.EACCES if Path(program).is_dir():
            return f"{program} is a folder; name the program in it"
        case errno.EACCES:
            return f"{program} may not be run; make it executable (chmod +x) and its folders readable"
        case errno.ENOEXEC:
            return f"{program} is no program for this machine; begin a script with #! or name its interpreter"
        case errno.EMFILE | errno.ENFILE:
            return "no descriptor is left; raise the limit (ulimit -n) or run fewer cartridges"
        case errno.EAGAIN | errno.ENOMEM:
            return "the machine has no process or memory to give; raise the limits or run fewer cartridges"
        case _:
            return f"{error.strerror}; check the command by running it in a shell"


class ChildProcess:
    """A process that this one spawned, with its pipes.

    The pipes are owned here. A link is given the descriptor's number, never closes it, and has ended before the
    `close_*` of its pipe is called: a number that is still in use could by then name another file.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        group: ProcessGroup,
        pipes: tuple[ChildPipe, ChildPipe, ChildPipe],
        guardian: Guardian | None,
        oom_kills_at_spawn: int,
    ) -> None:
        self._popen = popen
        self._group = group
        self._guardian = guardian
        self._oom_kills_at_spawn = oom_kills_at_spawn
        self._status: ExitStatus | None = None
        self._sent_kill = False
        self.stdin, self.stdout, self.stderr = pipes
        self.pid = popen.pid
        self.stdin_fd, self.stdout_fd, self.stderr_fd = (pipe.fileno() for pipe in pipes)
        for pipe in pipes:
            make_ready(pipe, enlarged=pipe is not self.stderr)

    def __repr__(self) -> str:
        status = peek_exit(self._popen)
        return f"<ChildProcess {self.pid} {'running' if status is None else status.describe()}>"

    def exit_status(self) -> ExitStatus | None:
        """Return how the process ended, or None while it lives. Does not reap it."""
        if self._status is None:
            status = peek_exit(self._popen)
            if status is not None and status.signal == KILL and not self._sent_kill:
                status = msgspec.structs.replace(status, oom_killed=_oom_kills.claim(self._oom_kills_at_spawn))
            self._status = status
        return self._status

    async def wait_exit(self) -> ExitStatus:
        """Wait until the process has ended, without reaping it. Any number of tasks may wait; cancelling is free."""
        await wait_for_exit(self._popen)
        status = self.exit_status()
        assert status is not None
        return status

    def kill_group(self, sig: signal.Signals) -> None:
        """Send a signal to the process and to all that stayed in its group. Does nothing once it is reaped."""
        status = self.exit_status()
        if self._popen.returncode is not None or status == ExitStatus():  # reaped, by us or by somebody else
            return
        if status is None and sig == KILL:
            self._sent_kill = True
        self._group.send(sig)

    async def stop(self, grace: float) -> ExitStatus:
        """End the process and reap it: stdin closed, SIGTERM after half of `grace` seconds, SIGKILL after the rest.

        Ends within `grace` + `REAP_LIMIT` seconds whatever the process does. If it cannot even be killed by then,
        this is logged, the status says nothing, and the guardian keeps the group. Cancellation skips what is left of
        the grace: the process is killed and reaped, shielded for `REAP_LIMIT` at most, before Cancelled goes on.
        The pipes of stdout and stderr stay open, to be read to their end: see `close`.
        """
        try:
            self.close_stdin()
            if not await self._exits_within(grace / 2):
                self.kill_group(signal.SIGTERM)
                await self._exits_within(grace / 2)
        finally:
            status = await self._kill_and_reap()
        return status

    async def _exits_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.wait_exit()
        return self.exit_status() is not None

    async def _kill_and_reap(self) -> ExitStatus:
        self.kill_group(KILL)
        with trio.move_on_after(REAP_LIMIT, shield=True):
            await self.wait_exit()
            return self.reap()
        _log.error("process %d is still there %g s after SIGKILL and is given up", self.pid, REAP_LIMIT)
        return ExitStatus()

    def reap(self) -> ExitStatus:
        """Kill what is left of the group of a process that has ended, tell the guardian, reap; a second call is free.

        Raises `RuntimeError` if the process lives: wait for its end, or stop it.
        """
        status = self.exit_status()
        if status is None:
            raise RuntimeError(f"process {self.pid} is running: stop() it, or wait_exit() first")
        self.kill_group(KILL)
        if self._guardian is not None:  # told before the reap, after which the group's id may be given to strangers
            self._guardian.remove_group(self.pid)
            self._guardian = None
        self._popen.wait()
        self._group.close()
        return status

    @property
    def stderr_source(self) -> int | trio.abc.ReceiveStream:
        """What `drain_stderr` reads."""
        return self.stderr if isinstance(self.stderr, trio.abc.ReceiveStream) else self.stderr_fd

    def close_stdin(self) -> None:
        """Close our end of the process's stdin, once."""
        close_pipe(self.stdin)

    def close_stdout(self) -> None:
        """Close our end of the process's stdout, once."""
        close_pipe(self.stdout)

    def close_stderr(self) -> None:
        """Close our end of the process's stderr, once."""
        close_pipe(self.stderr)

    def close(self) -> None:
        """Close all three pipes, once each."""
        self.close_stdin()
        self.close_stdout()
        self.close_stderr()
