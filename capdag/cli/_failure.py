"""Expected errors, and the exit code each ends the command with."""

from __future__ import annotations

import errno

from capdag.errors import CapdagError, ConfigError

FAILED, WRONG_USE, TAKEN, INTERRUPTED = 1, 2, 3, 130
"""Exit codes. click itself uses `WRONG_USE` for its own complaints."""

_UNWRITABLE = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE})


class TakenError(CapdagError):
    """The port to listen on is in use. The text names it and the remedy."""


class EndedError(CapdagError):
    """Something ended what the command was doing; `exit_code` is what the command ends with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class OutputError(CapdagError):
    """What the command has to say cannot be written."""


class HalfEndedError(EndedError):
    """A half of a split server has ended by itself."""


class CallEndedError(EndedError):
    """A call was cancelled from outside: by a signal, or because nobody reads its answer."""


def expected_error(error: BaseException) -> CapdagError | None:
    """Return the expected error that `error` is, or the first of a group that holds nothing else; None otherwise."""
    if isinstance(error, CapdagError):
        return error
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
        return OutputError(f"cannot write to stdout: {error.strerror}")
    if isinstance(error, BaseExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return None if None in found else found[0]
    return None


def exit_code(error: CapdagError) -> int:
    """Return what the command ends with."""
    if isinstance(error, EndedError):
        return error.exit_code
    return WRONG_USE if isinstance(error, ConfigError) else TAKEN if isinstance(error, TakenError) else FAILED
