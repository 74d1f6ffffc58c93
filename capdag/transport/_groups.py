"""A process with all that it starts, which end together (contracts: Processes).

Where there are process groups, it leads one of its own, in a session of its own; on Windows it has a job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

if sys.platform == "win32":
    from ._jobs_windows import Job, start_in_job

    KILL = signal.SIGTERM
    """What ends a process whatever it does. Windows knows no gentler way for a program without a window."""

    class ProcessGroup:
        """A job."""

        def __init__(self, job: Job) -> None:
            self._job = job

        def send(self, _: signal.Signals) -> None:
            """End everything in it, whatever the signal."""
            self._job.kill()

        def close(self) -> None:
            """End what is left in it, once its first process has been waited for."""
            self._job.close()
else:
    KILL = signal.SIGKILL
    """What ends a process whatever it does."""

    class ProcessGroup:
        """A process group, by the id of its leader."""

        def __init__(self, pgid: int) -> None:
            self._pgid = pgid

        def send(self, sig: signal.Signals) -> None:
            """Send a signal to all of it. Only while its leader has not been reaped: the id is a stranger's then."""
            try:
                os.killpg(self._pgid, sig)
            except (ProcessLookupError, PermissionError):  # nobody is left; macOS says the latter of a zombie
                return

        def close(self) -> None:
            """Nothing is to be given back."""


def start_in_group(
    command: Sequence[str], *, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
) -> tuple[subprocess.Popen[bytes], ProcessGroup]:  # fmt: skip
    """Start a process that leads a group of its own. Raises OSError or ValueError for one that cannot be started.

    No code of ours runs between fork and exec: on macOS that would break what engines build on.
    """
    if sys.platform == "win32":
        process, job = start_in_job(command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd)
        return process, ProcessGroup(job)
    else:  # noqa: RET505 - type checkers know which branch is for which system
        process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, close_fds=True, start_new_session=True
        )
        return process, ProcessGroup(process.pid)
