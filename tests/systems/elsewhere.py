"""Imports every module of the packages as Windows would, which has least. Run as a script.

The libraries are loaded as this system needs them and stay; then what Windows does not have is hidden, and our modules
are loaded anew. What only Windows has is stood in for: no import calls it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
import types
from typing import Any

import capdag
import cartridges

POSIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "_posixsubprocess")
POSIX_NAMES: dict[types.ModuleType, tuple[str, ...]] = {
    os: (
        "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "fork", "geteuid", "getuid", "killpg", "pidfd_open",
        "sched_getaffinity", "set_blocking", "setsid", "waitid", "writev",
    ),
    select: ("PIPE_BUF", "POLLIN", "POLLOUT", "epoll", "poll"),
    signal: ("SIGHUP", "SIGKILL", "SIGPIPE", "SIGSTOP"),
    socket: ("AF_UNIX",),
}  # fmt: skip


def modules() -> list[str]:
    """Return the names of all modules but those that run something when they are imported."""
    found = [
        module.name
        for package in (capdag, cartridges)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return [name for name in found if not name.endswith(("__main__", ".main"))]


def load(names: list[str]) -> None:
    """Import all of them. Raises what the first that fails raises."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise ImportError(f"{name} cannot be imported: {error!r}") from error


def become_windows() -> None:
    """Forget our modules, and look like Windows from here on."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("capdag", "cartridges"):
            del sys.modules[name]
    for module, attributes in POSIX_NAMES.items():
        for attribute in attributes:
            vars(module).pop(attribute, None)  # where it is not there, all the better
    hidden: dict[str, Any] = dict.fromkeys(POSIX_MODULES)
    sys.modules.update(hidden)
    for name in ("msvcrt", "_winapi"):
        sys.modules[name] = types.ModuleType(name)
    os.O_BINARY = os.O_NOINHERIT = 0  # type: ignore[attr-defined]
    ctypes.WinDLL = _Library  # type: ignore[attr-defined]
    sys.platform = "win32"


class _Library:
    """Stands for a library of Windows: functions that have types."""

    def __init__(self, name: str, **_: object) -> None:
        self._name = name

    def __getattr__(self, name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace()


if __name__ == "__main__":
    names = modules()
    load(names)
    become_windows()
    load(names)
    print(f"{len(names)} modules")
