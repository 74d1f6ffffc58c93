"""Bounds on memory that no single request exceeds: all open windows together, and what waits without credit.

protocol-spec/host.md, Memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from capdag.errors import AttributionClass
from capdag.wire import TERMINAL_TYPES, Failure, FrameType, FrameView, Limits

from .flows import Flow

if TYPE_CHECKING:
    from .cartridge import Cartridge

UNCREDITED_LIMIT = 256 * 1024
"""Bytes of one request's frames other than CHUNKs and terminals that may wait in the queue of one link."""

LOG_LIMIT = UNCREDITED_LIMIT * 3 // 4
"""How much of that LOGs may take. They are lost past it; what of the rest finds no room is the end of its request."""

SHARE = 3
"""How many times what is left free one cartridge may have of what all share."""

UNBOUNDED = frozenset({FrameType.REQ, FrameType.CHUNK, *TERMINAL_TYPES})
"""Frames that need no such bound: those under credit, and those of which there is one."""


def stream_debt(limits: Limits) -> int:
    """Return what one open stream may come to (bytes)."""
    return limits.initial_credit * limits.max_chunk


def has_share(taken: int, free: int) -> bool:
    """True if one cartridge that has taken so much of what all share may have more: a quarter at least stays free.

    Its bound moves with what is free, so that one alone may have much, and several leave room for the next.
    """
    return taken <= SHARE * free


class Debt:
    """What the host has let others send at most: window x max_chunk for each stream of every live request.

    A stream counts until its request has ended: what it has sent may still be queued. It counts towards the share of
    the cartridge that pays for it as well.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.owed = 0

    def has_room(self, limits: Limits, payer: Cartridge | None) -> bool:
        """True if one more stream may be opened."""
        free = self.limit - self.owed
        return stream_debt(limits) <= free and (payer is None or has_share(payer.owed, free))

    def is_greedy(self, payer: Cartridge) -> bool:
        """True if a cartridge has used up its share."""
        return not has_share(payer.owed, self.limit - self.owed)

    def lend(self, flow: Flow, limits: Limits) -> bool:
        """Count a new stream of `flow`; False, and nothing is counted, if there is no room."""
        if not self.has_room(limits, flow.payer):
            return False
        self._count(flow, stream_debt(limits))
        return True

    def settle(self, *flows: Flow) -> None:
        """Count the flows of a request that has ended no more."""
        for flow in flows:
            self._count(flow, -flow.debt)

    def _count(self, flow: Flow, more: int) -> None:
        self.owed += more
        flow.debt += more
        if flow.payer is not None:
            flow.payer.owed += more

    def refusal(self, payer: Cartridge | None) -> Failure:
        """Return what a request ends with that finds no room."""
        if payer is not None and self.is_greedy(payer):
            seen, free = payer.owed, self.limit - self.owed
            text = (
                f"the open streams of the calls and answers of cartridge {payer.id!r} may come to {seen} bytes, over "
                f"{SHARE} times the {free} that are left for all others, of the {self.limit} of debt_limit: it is to "
                "end its calls, and to say whose they are (parent_rid)"
            )
        else:
            seen = self.owed
            text = (
                f"the open streams of this host may come to {seen} bytes, and no more than {self.limit} are allowed: "
                "try again when others have ended, or raise debt_limit"
            )
        meta = {"param": "debt_limit", "limit": self.limit, "seen": seen, "retryable": True}
        return Failure("DEBT_LIMIT", AttributionClass.RESOURCE, text, meta)


def too_many_calls(cartridge_id: str, live: int, limit: int) -> Failure:
    """Return what a call is refused with whose caller has used up its share of the table."""
    text = (
        f"{live} calls of cartridge {cartridge_id!r} are live, over {SHARE} times the places left for all others, of "
        f"the {limit} of table_limit: it is to end its calls, and to say whose they are (parent_rid)"
    )
    return Failure("TABLE_FULL", AttributionClass.RESOURCE, text)


class Backlog:
    """Counts, a request, the uncredited bytes in the queue of one link, of which only the length is seen.

    `queued` returns that length. Positions are bytes since the queue was last empty. Costs nothing while it is empty.
    """

    def __init__(self, queued: Callable[[], int]) -> None:
        self._queued = queued
        self._entered = 0
        self._turn: list[tuple[object, int]] = []
        self._waiting: deque[tuple[int, object, int]] = deque()
        self._totals: dict[object, int] = {}

    def admits(self, view: FrameView, owner: object = None) -> bool:
        """Count a frame that this turn sends; False, and nothing is counted, if its request has too much queued.

        `owner`: what it counts for in place of its request.
        """
        queued = self._queued()
        if not queued:
            return True
        self._forget(self._entered - queued)
        key, size = view.id if owner is None else owner, len(view.body)
        total = self._totals.get(key, 0) + size
        if total > (LOG_LIMIT if view.type is FrameType.LOG else UNCREDITED_LIMIT):
            return False
        self._totals[key] = total
        self._turn.append((key, size))
        return True

    def _forget(self, written: int) -> None:
        while self._waiting and self._waiting[0][0] <= written:
            _, key, size = self._waiting.popleft()
            self._totals[key] -= size
            if not self._totals[key]:
                del self._totals[key]

    def sent(self, before: int) -> None:
        """Note that a turn's frames were sent, to a queue that held `before` bytes."""
        if not before:
            self._entered = 0
            if self._totals:
                for counted in (self._turn, self._waiting, self._totals):
                    counted.clear()
        self._entered += self._queued() - before
        if self._turn:
            self._waiting.extend((self._entered, key, size) for key, size in self._turn)
            self._turn.clear()
