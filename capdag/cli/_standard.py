"""The standard streams of the command: one that started it may have closed them."""

from __future__ import annotations

import os
import sys

_LAST_STANDARD_FD = 2


def hold_standard_streams() -> None:
    """Give the descriptors 0 to 2 to /dev/null if they are closed, as services may start a program.

    A pipe or socket of ours that got such a number would be taken for the standard stream by every child process.
    """
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= _LAST_STANDARD_FD:
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    if not sys.stderr:  # None if it was closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end of the process


def drop_output() -> None:
    """Send what the output still holds nowhere, so that the interpreter's end does not fail by it once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
