"""The guardian's own process: kill and remove what a host left when its end of the pipe closes.

Run as a script by `capdag.transport.guardian` under `python -I -S`, so it imports nothing beyond the interpreter's
own modules and stays near 10 MB. Arguments: the run id, then the entries known at the start. Standard input carries
NUL-terminated messages, `+ENTRY` and `-ENTRY`; an entry is a process group id in decimal or an absolute path.
The sweep of stale runs (`capdag.transport.runs`) imports the search for a run's processes from here.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing itself would cost this process a megabyte
    from collections.abc import Callable, Iterator

if sys.platform == "win32":  # where jobs end what a host leaves (`guardian`), and this is only imported
    _KILL = signal.SIGTERM
    _KILL_GROUP = os.kill
    _IGNORED = (signal.SIGINT, signal.SIGTERM)
else:
    _KILL = signal.SIGKILL
    _KILL_GROUP = os.killpg
    _IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RUN_ID_VARIABLE = "CAPDAG_RUN_ID"
"""Names the run in the environment of every process that a host spawns, and so of what those spawn."""

KILL_PASSES = 100
"""Most searches of the process table for one run; with `PASS_INTERVAL` this bounds the killing to about 2 s."""

PASS_INTERVAL = 0.02
"""Seconds between two searches."""


def carriers(variable: str, run_id: str) -> Iterator[int]:
    """Yield the ids of the live processes that have `variable` set to `run_id` in their environment.

    None where there is no /proc. Never the calling process.
    """
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 - pathlib would cost this process a megabyte
        return
    mark = os.fsencode(f"{variable}={run_id}")
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid() and _carries(int(name), mark):
            yield int(name)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return mark in environ.read().split(b"\0")
    except OSError:  # it has gone, or it is another user's
        return False


def kill_carriers(variable: str, run_id: str) -> set[int]:
    """SIGKILL every process that carries the run id, until two searches in a row find none; return their ids.

    One quiet search is not enough: a child that was being spawned when the host died gets its environment only with
    its exec. Gives up after `KILL_PASSES` searches (a process in uninterruptible sleep does not die).
    """
    killed: set[int] = set()
    quiet = 0
    for _ in range(KILL_PASSES):
        found = set()
        for pid in carriers(variable, run_id):  # one by one, so that none can have become another's meanwhile
            _attempt(os.kill, pid, _KILL)
            found.add(pid)
        killed.update(found)
        quiet = 0 if found else quiet + 1
        if quiet == 2:
            break
        time.sleep(PASS_INTERVAL)
    return killed


def _follow(entries: dict[bytes, None]) -> None:
    """Apply the host's messages to `entries` (insertion order kept) until the pipe ends."""
    rest = b""
    while chunk := os.read(0, 65536):
        *messages, rest = (rest + chunk).split(b"\0")
        for message in messages:
            if message[:1] == b"+":
                entries[message[1:]] = None
            else:
                entries.pop(message[1:], None)


def _clean_up(entries: dict[bytes, None], run_id: str) -> None:
    for entry in entries:
        if entry.isdigit():
            _attempt(_KILL_GROUP, int(entry), _KILL)
    kill_carriers(RUN_ID_VARIABLE, run_id)
    # Last told, first removed: the run file, told first, is there for as long as anything else of the run may be.
    for entry in reversed(entries):
        if not entry.isdigit():
            _attempt(os.unlink, entry)


def _attempt(action: Callable[..., None], *arguments: object) -> None:
    try:
        action(*arguments)
    except OSError:  # gone already, or not ours to touch: the rest must still be done
        return


def main(arguments: list[str]) -> None:
    """Guard one run until its host's end of the pipe closes, then clean up."""
    # A service manager signals a whole control group at once; the guardian must outlast the host's own shutdown.
    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    run_id, *known = arguments
    entries = {os.fsencode(entry): None for entry in known}
    _follow(entries)
    _clean_up(entries, run_id)


if __name__ == "__main__":
    main(sys.argv[1:])
