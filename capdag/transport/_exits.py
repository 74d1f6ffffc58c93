"""How a child process ended, seen without reaping it: until the reap, its process id cannot be given to another."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import trio

POLL_INTERVAL = 0.02
"""Seconds between two looks at a child where the system has no descriptor for a process."""


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: by `code`, or by `signal`; neither is known if something else took its status."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    """The kernel killed it because the memory of the control group was used up."""

    def describe(self) -> str:
        """Return the end in words that follow "it", such as "exited with status 1" or "killed by SIGKILL"."""
        if self.oom_killed:
            return "killed by SIGKILL because memory ran out"
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        if self.code is not None:
            return f"exited with status {self.code}"
        return "ended with unknown status"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def peek_exit(process: subprocess.Popen[bytes]) -> ExitStatus | None:
    """Return how a child of this process ended, leaving it unreaped, or None while it lives (a stopped one does).

    Where the system cannot look without reaping (macOS before Python 3.13), this reaps.
    """
    if sys.platform == "win32":
        code = process.poll()
        return None if code is None else ExitStatus(code=code)
    elif process.returncode is not None or not hasattr(os, "waitid"):  # noqa: RET505 - as in _exit_descriptor
        code = process.poll()
        if code is None:
            return None
        return ExitStatus(code=code) if code >= 0 else ExitStatus(signal=-code)
    else:
        try:
            info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ExitStatus()
        if info is None:
            return None
        return ExitStatus(code=info.si_status) if info.si_code == os.CLD_EXITED else ExitStatus(signal=info.si_status)


async def wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait until a child of this process has ended, and leave it unreaped. Any number of tasks may wait.

    A cancelled wait changes nothing.
    """
    if peek_exit(process) is not None:  # and perhaps reaped: its id may be a stranger's
        await trio.lowlevel.checkpoint()
        return
    try:
        fd = _exit_descriptor(process.pid)
    except (AttributeError, OSError):  # no such call, or no descriptor left to give: a stop must work even then
        while peek_exit(process) is None:  # noqa: ASYNC110 - nothing in this process could set an event
            await trio.sleep(POLL_INTERVAL)
        return
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)


def _exit_descriptor(pid: int) -> int:
    """Return a descriptor that becomes readable when a process ends. Raises OSError where there is none."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    elif sys.platform == "win32":  # noqa: RET505 - type checkers know which branch is for which system
        raise OSError(errno.ENOSYS, "no descriptor for a process")
    else:
        queue = select.kqueue()  # which another kqueue, that of trio, can wait for
        try:
            once = select.KQ_EV_ADD | select.KQ_EV_ONESHOT
            queue.control([select.kevent(pid, select.KQ_FILTER_PROC, once, select.KQ_NOTE_EXIT)], 0)
            return os.dup(queue.fileno())
        finally:
            queue.close()


class OomKills:
    """The kernel's count of processes killed for memory in a control group, each of which is blamed on one child."""

    def __init__(self, counter: Path | None) -> None:
        self._counter = counter
        self._claimed = 0

    def count(self) -> int:
        """Return the kernel's count so far; 0 where it cannot be read."""
        if self._counter is None:
            return 0
        try:
            lines = self._counter.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def claim(self, at_spawn: int) -> bool:
        """Take one kill that came after `at_spawn`, a former `count`, and that no other child has taken."""
        self._claimed = max(self._claimed, at_spawn)
        if self.count() <= self._claimed:
            return False
        self._claimed += 1
        return True


def find_oom_counter(root: Path = Path("/")) -> Path | None:
    """Return the file with the count of this process's control group (version 2 or 1), or None if there is none."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.events"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.oom_control"
        else:
            continue
        # Inside a container the path may be the one seen from outside, while the mount shows the group as its root.
        for counter in (base / path.lstrip("/") / name, base / name):
            if counter.is_file():
                return counter
    return None
