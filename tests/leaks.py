"""Nothing may be left after a test: no process, no descriptor, no trio task.

`assert_no_leaks()` is applied to every test by `conftest.py`; use it inside a test for a narrower stretch of code, or
for trio tasks, which only a check inside the run can see.
"""

from __future__ import annotations

import gc
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import trio

SETTLE = 1.0
"""Seconds that a killed process has for leaving the process table. Descriptors and tasks get none."""

_MARK_NAME = "CAPDAG_TEST_SESSION"
_MARK = f"{_MARK_NAME}={uuid.uuid4().hex}".encode()

Processes = Mapping[int, str]
Descriptors = Mapping[int, str]


def mark_descendants() -> None:
    """Put a mark in the environment, by which a process is still known as ours when its parent has gone."""
    name, _, value = _MARK.decode().partition("=")
    os.environ[name] = value


@contextmanager
def assert_no_leaks() -> Iterator[None]:
    """Fail if the block leaves a process (a zombie or a detached grandchild too), a descriptor or a trio task.

    Works in a trio test and in a plain one; it does not await. When the block raises, its own error is what counts
    and nothing is checked. Left-over processes are killed, so that one leak fails one test only.
    """
    tasks = _tasks()
    descriptors = _descriptors()
    processes = _processes()
    yield
    leaks = [f"process {pid}: {what}" for pid, what in _settled(processes).items()]
    leaks += [f"descriptor {fd}: {target}" for fd, target in _new_descriptors(descriptors).items()]
    leaks += [f"task {task.name}" for task in _tasks() - tasks]
    assert not leaks, "left behind: " + "; ".join(leaks)


def alive(pid: int) -> bool:
    """Whether a process runs or is stopped. A zombie is dead: an orphan's waits for an init that takes its time."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _settled(before: Processes) -> Processes:
    deadline = time.monotonic() + SETTLE
    while left := {pid: what for pid, what in _processes().items() if before.get(pid) != what}:
        if time.monotonic() > deadline:
            _kill(left)
            return left
        time.sleep(0.01)
    return {}


def _kill(left: Processes) -> None:
    for pid in left:
        try:
            psutil.Process(pid).kill()
        except psutil.NoSuchProcess:
            continue


def _processes() -> Processes:
    """Children of this process in any state, and living processes anywhere that inherited our mark."""
    found = {child.pid: _describe(child) for child in psutil.Process().children(recursive=True)}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and pid not in found and _carries_mark(entry):
            found[pid] = _describe(psutil.Process(pid)) if psutil.pid_exists(pid) else "gone"
    return {pid: what for pid, what in found.items() if what != "gone"}


def _carries_mark(entry: Path) -> bool:
    try:
        return _MARK in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _describe(process: psutil.Process) -> str:
    """Name a process so that the text stays the same while it lives, except for becoming a zombie."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"zombie started at {process.create_time()}"
        return f"{' '.join(process.cmdline())[:200]} started at {process.create_time()}"
    except psutil.NoSuchProcess:
        return "gone"


def _descriptors() -> Descriptors:
    """What each open descriptor of this process points at; empty where there is no /proc."""
    found = {}
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - Path.iterdir would hold a descriptor of its own
    except FileNotFoundError:
        return {}
    for name in names:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return found


def _new_descriptors(before: Descriptors) -> Descriptors:
    left = {fd: target for fd, target in _descriptors().items() if before.get(fd) != target}
    if left:
        gc.collect()  # an object in a cycle may hold a descriptor that nothing can reach any more
        now = _descriptors()
        left = {fd: target for fd, target in left.items() if now.get(fd) == target}
    return left


def _tasks() -> set[trio.lowlevel.Task]:
    if not trio.lowlevel.in_trio_run():
        return set()
    root = trio.lowlevel.current_root_task()
    found: set[trio.lowlevel.Task] = set()
    pending = [root] if root is not None else []
    while pending:
        task = pending.pop()
        found.add(task)
        pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found
