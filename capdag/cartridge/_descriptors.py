"""Who owns descriptors 0 and 1: the protocol, moved to where no print and no C library can reach it.

Afterwards 1 is stderr and 0 is /dev/null, at the descriptor level, so that an engine's own output lands in the log.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from capdag.errors import ConfigError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Descriptors(NamedTuple):
    """The private descriptors frames come from and go to. Not inherited by processes that the cartridge starts."""

    read_fd: int
    write_fd: int


_claimed: Descriptors | None = None


def claim_descriptors() -> Descriptors:
    """Move the protocol away from 0 and 1, once: the launcher does it before the author's module is imported, `run`
    for a cartridge that was started directly. File status flags stay as they are: they may be shared.

    Raises ConfigError where nobody can speak frames.
    """
    global _claimed
    if _claimed is None:
        open_stderr()
        if os.isatty(0):
            raise ConfigError("stdin is a terminal, but a host speaks frames there: for people there is --help")
        try:
            read_fd = _private_copy(0)
            write_fd = _private_copy(1)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
            os.dup2(2, 1)
        except OSError as error:
            raise ConfigError(f"stdin and stdout must be open, as a host gives them: {error}") from None
        _buffer_lines()
        _claimed = Descriptors(read_fd, write_fd)
    return _claimed


_output_fd: int | None = None


def claim_output() -> int:
    """Move stdout away from 1 for command mode, once: the answer goes to the descriptor returned, and what an engine
    prints to stderr. File status flags stay as they are. Raises ConfigError if stdout is closed.
    """
    global _output_fd
    if _output_fd is None:
        open_stderr()
        try:
            output_fd = _private_copy(1)
            os.dup2(2, 1)
        except OSError as error:
            raise ConfigError(f"stdout must be open: {error}; redirect it if it is not wanted") from None
        _buffer_lines()
        _output_fd = output_fd
    return _output_fd


def open_stderr() -> None:
    """Have a stderr where there is none (`2>&-`): what is said there is lost, and nothing else."""
    try:
        os.fstat(2)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        if null != 2:
            os.close(null)
    if sys.stderr is None:
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - to the end


def _private_copy(fd: int) -> int:
    """Return another descriptor for the same file, for bytes as they are, that no process started here inherits."""
    if sys.platform == "win32":
        copy = os.dup(fd)
        msvcrt.setmode(copy, os.O_BINARY)
        return copy
    else:  # noqa: RET505 - type checkers know which branch is for which system
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _buffer_lines() -> None:
    """Let a print show up now, not when a buffer meant for a pipe is full: the process ends without flushing."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
