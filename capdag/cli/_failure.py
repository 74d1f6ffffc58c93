"""Expected errors, and the exit code each ends the command with."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path

from capdag.errors import CapdagError, ConfigError, RequestFailedError

FAILED, WRONG_USE, TAKEN, INTERRUPTED = 1, 2, 3, 130
"""Exit codes. click itself uses `WRONG_USE` for its own complaints."""

_BY_SIGNAL = 128

_UNWRITABLE = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})


class TakenError(CapdagError):
    """The port or address to listen on is in use. The text names it and the remedy."""


class EndedError(CapdagError):
    """Something ended what the command was doing; `exit_code` is what the command ends with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class OutputError(CapdagError):
    """What the command has to say cannot be written."""


class UnreadError(OutputError):
    """Nobody reads what the command has to say: it ends as SIGPIPE would end it, and says nothing."""


class HalfEndedError(EndedError):
    """A half of a split server has ended by itself."""


class CallEndedError(EndedError):
    """A call was cancelled from outside: by a signal, or because nobody reads its answer."""


def expected_error(error: BaseException) -> CapdagError | None:
    """Return the expected error that `error` is, or the first of a group that holds nothing else; None otherwise."""
    if isinstance(error, CapdagError):
        return error
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return ConfigError("the current folder is gone: change to one that is there")
    if isinstance(error, BrokenPipeError):
        return UnreadError("nobody reads stdout")
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
        return OutputError(f"cannot write to stdout: {error.strerror}")
    if isinstance(error, BaseExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return None if None in found else found[0]
    return None


def _is_nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def exit_code(error: CapdagError) -> int:
    """Return what the command ends with."""
    if isinstance(error, EndedError):
        return error.exit_code
    if isinstance(error, UnreadError):
        return _unread()
    return WRONG_USE if isinstance(error, ConfigError) else TAKEN if isinstance(error, TakenError) else FAILED


def tell(error: CapdagError) -> str:
    """Return what a person is told."""
    if isinstance(error, RequestFailedError):
        from capdag.cartridge.terminal import render_failure

        return render_failure(error)
    return str(error)


def _unread() -> int:
    if sys.platform == "win32":
        return FAILED
    else:  # noqa: RET505 - type checkers know which branch is for which system
        return ended_by(signal.SIGPIPE)


def ended_by(number: signal.Signals) -> int:
    """Return the exit code of a command that a signal has ended, as shells give it."""
    return _BY_SIGNAL + number
