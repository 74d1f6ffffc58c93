"""The cases, in the order in which they are tried and told."""

from __future__ import annotations

from .._case import Case
from . import cancel, credit, ending, errors, handshake, health, manifest, streams

CASES: tuple[Case, ...] = (
    *handshake.CASES,
    *manifest.CASES,
    *streams.CASES,
    *credit.CASES,
    *cancel.CASES,
    *errors.CASES,
    *health.CASES,
    *ending.CASES,
)
