"""Expected errors, and the exit code each ends the command with."""

from __future__ import annotations

from capdag.errors import CapdagError, ConfigError

FAILED, WRONG_USE, TAKEN, INTERRUPTED = 1, 2, 3, 130
"""Exit codes. click itself uses `WRONG_USE` for its own complaints."""


class TakenError(CapdagError):
    """The port to listen on is in use. The text names it and the remedy."""


class HalfEndedError(CapdagError):
    """A half of a split server has ended by itself, with an exit code that becomes the server's own."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class InterruptedCallError(CapdagError):
    """A call was cancelled by a signal."""


def expected_error(error: BaseException) -> CapdagError | None:
    """Return the expected error that `error` is, or the first of a group that holds nothing else; None otherwise."""
    if isinstance(error, CapdagError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return None if None in found else found[0]
    return None


def exit_code(error: CapdagError) -> int:
    """Return what the command ends with."""
    if isinstance(error, HalfEndedError):
        return error.exit_code
    codes = {ConfigError: WRONG_USE, TakenError: TAKEN, InterruptedCallError: INTERRUPTED}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), FAILED)
