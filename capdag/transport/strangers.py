"""Connections that come to nothing: counted by kind, and logged at a bounded rate."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Hashable
from enum import StrEnum

import trio

LOG_INTERVAL = 10.0
"""Seconds between two lines about strangers of one kind at one address."""

log = logging.getLogger("capdag.links")


class Wrong(StrEnum):
    """Why a connection was turned away."""

    CROWD = "too many others were waiting to be let in"
    DESCRIPTORS = "no descriptor was left"
    LATE = "the opening handshake took too long"
    HANDSHAKE = "the opening handshake failed"
    CERTIFICATE = "a certificate is not accepted"
    TOKEN = "it did not show the right token"  # noqa: S105 - a reason
    PATH = "it asked for another path"
    SILENT = "it sent no frame in time"
    GARBAGE = "what it sent first is no frame"


class Hush:
    """Says which lines of a log may be written: of each kind one in `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._quiet_until: dict[Hashable, float] = {}
        self._unlogged: Counter[Hashable] = Counter()

    def passes(self, kind: Hashable) -> bool:
        """Return whether a line of `kind` may be written now."""
        if trio.current_time() < self._quiet_until.get(kind, -math.inf):
            self._unlogged[kind] += 1
            return False
        self._quiet_until[kind] = trio.current_time() + self._interval
        return True

    def rest(self, kind: Hashable) -> str:
        """Return what a line that may be written says of those before it, and count anew."""
        unlogged = self._unlogged.pop(kind, 0)
        return f" ({unlogged} others since the last line of this kind)" if unlogged else ""


class Strangers:
    """Who was turned away at one address: `counts` by reason."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._hush = Hush(LOG_INTERVAL)
        self.counts: Counter[Wrong] = Counter()

    def turn_away(self, who: str, wrong: Wrong, detail: str = "") -> None:
        """Count a connection, and log it unless another of its kind was logged just now."""
        self.counts[wrong] += 1
        if self._hush.passes(wrong):
            shown = f"{wrong}: {detail[:200]}" if detail else wrong
            log.warning("%s: a connection of %s was turned away: %s%s", self._where, who, shown, self._hush.rest(wrong))

    def snapshot(self) -> dict[str, int]:
        """Return how many were turned away, by reason."""
        return {wrong.name.lower(): number for wrong, number in self.counts.items()}
