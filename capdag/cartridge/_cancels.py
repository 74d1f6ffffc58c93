"""Whose `trio.Cancelled` it is that comes out of an author's code."""

from __future__ import annotations

import math

import trio


def is_cancelled_from_outside(error: BaseException) -> bool:
    """True if `error` holds the cancellation of a scope around this one, which must pass. Any other `trio.Cancelled` is
    a stray, kept by the author's code and raised again when its own scope was over: a failure like others."""
    if trio.current_effective_deadline() != -math.inf:
        return False
    return isinstance(error, trio.Cancelled) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(trio.Cancelled) is not None
    )
