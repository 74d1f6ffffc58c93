"""Connections that come to nothing: counted by kind, and logged at a bounded rate."""

from __future__ import annotations

import logging
import math
from collections import Counter
from enum import StrEnum

import trio

LOG_INTERVAL = 10.0
"""Seconds between two lines about strangers at one address."""

log = logging.getLogger("capdag.links")


class Wrong(StrEnum):
    """Why a connection was turned away."""

    CROWD = "too many others were waiting to be let in"
    DESCRIPTORS = "no descriptor was left"
    LATE = "the opening handshake took too long"
    HANDSHAKE = "the opening handshake failed"
    TOKEN = "it did not show the right token"  # noqa: S105 - a reason
    PATH = "it asked for another path"
    SILENT = "it sent no frame in time"
    GARBAGE = "what it sent first is no frame"


class Strangers:
    """Who was turned away at one address: `counts` by reason."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._quiet_until = -math.inf
        self._unlogged = 0
        self.counts: Counter[Wrong] = Counter()

    def turn_away(self, who: str, wrong: Wrong, detail: str = "") -> None:
        """Count a connection, and log it unless another was logged just now."""
        self.counts[wrong] += 1
        if trio.current_time() < self._quiet_until:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} others since the last line of this kind)" if self._unlogged else ""
        shown = f"{wrong}: {detail[:200]}" if detail else wrong
        log.warning("%s: a connection of %s was turned away: %s%s", self._where, who, shown, more)
        self._quiet_until = trio.current_time() + LOG_INTERVAL
        self._unlogged = 0

    def snapshot(self) -> dict[str, int]:
        """Return how many were turned away, by reason."""
        return {wrong.name.lower(): number for wrong, number in self.counts.items()}
