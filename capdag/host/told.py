"""What the log has said of one side, whose departures may come with every frame (protocol-spec/host.md, Tolerance)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from capdag.printable import printable

log = logging.getLogger("capdag.host")

_LINES = 8
_LONGEST = 400


class Told:
    """Remembers what has been said. The kinds are few: each is a sentence of the code's, without what was seen."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._tolerated: int | None = None

    def is_news(self, kind: str) -> bool:
        """Note that a kind is said; False if it has been."""
        if kind in self._said:
            return False
        self._said.add(kind)
        return True

    def tell_tolerated(self, name: str, faults: Sequence[str]) -> None:
        """Warn of faults of a cartridge's HELLO that its host does without, unless they are those of its last start."""
        last, self._tolerated = self._tolerated, hash(tuple(faults))
        if not faults or self._tolerated == last:
            return
        for fault in faults[:_LINES]:
            log.warning("cartridge %r: %s", name, printable(fault, _LONGEST))
        more = f"{len(faults) - _LINES} more; " if len(faults) > _LINES else ""
        log.warning(
            "cartridge %r serves here all the same; other hosts refuse it (%s`capdag check COMMAND` tells all)",
            name,
            more,
        )  # fmt: skip
