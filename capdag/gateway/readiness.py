"""How far the start of the server is that an application answers for."""

from __future__ import annotations

from enum import Enum, auto

from .errors import ApiError


class Readiness(Enum):
    """What is known of the models.

    STARTING: nothing that can be relied on; LEARNING: some cartridge takes long to say what it serves; READY: all that
    is to be known.
    """

    STARTING = auto()
    LEARNING = auto()
    READY = auto()


def starting(what: str) -> ApiError:
    """Return the 503 for a request that may be answered in a moment; `what` says what is not known yet."""
    return ApiError(503, "starting", f"{what}: the server is starting, try again in a moment", retry=True)
