"""What every router keeps of requests: live rows, recently ended ids, counted drops (protocol-spec/wire.md, Routing).

The law: every accepted request ends with exactly one terminal and leaves no state. One row holds everything about a
request; registering twice is an error; ending takes the row out whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, Generic, Literal, TypeVar

from capdag.errors import AttributionClass, CapdagError, LocalProtocolError

from .frame import FrameType, MessageId, show_id
from .view import FrameView

Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)

DEFAULT_TABLE_LIMIT = 65_536
"""Live rows a router takes before it refuses new requests (setting)."""

RELEASED_RING = 4_096
"""Ended RIDs remembered, so that frames that crossed a terminal are told from lost ones."""


class TableFullError(CapdagError):
    """The table has no room: the REQ is refused, no live row is touched."""

    code = "TABLE_FULL"
    attribution = AttributionClass.RESOURCE


class RequestTable(Generic[Key, Row]):
    """Live requests by key."""

    def __init__(self, limit: int = DEFAULT_TABLE_LIMIT) -> None:
        self.limit = limit
        self.registered_total = 0
        self._rows: dict[Key, Row] = {}

    def register(self, key: Key, row: Row) -> None:
        """Enter a row. Raises LocalProtocolError if the key is live, TableFullError at the limit."""
        if key in self._rows:
            raise LocalProtocolError(f"request {key!r} is already live")
        if len(self._rows) >= self.limit:
            raise TableFullError(
                f"{self.limit} requests are live, the most this router takes: retry later or raise table_limit"
            )
        self._rows[key] = row
        self.registered_total += 1

    def find(self, key: Key) -> Row | None:
        """Return the live row, or None."""
        return self._rows.get(key)

    def take(self, key: Key) -> Row | None:
        """Take a row out and return it, or None if it is not live."""
        return self._rows.pop(key, None)

    def rows(self) -> list[Row]:
        """Return the live rows, oldest first, as a list that stays valid while rows are taken out."""
        return list(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)


class ReleasedRing:
    """The last RIDs whose requests ended by an observed terminal."""

    def __init__(self, size: int = RELEASED_RING) -> None:
        self._size = size
        self._ids: dict[MessageId, None] = {}

    def add(self, rid: MessageId) -> None:
        """Remember an ended RID; the oldest is forgotten past the size."""
        self._ids.pop(rid, None)
        self._ids[rid] = None
        if len(self._ids) > self._size:
            del self._ids[next(iter(self._ids))]

    def discard(self, rid: MessageId) -> None:
        """Forget a RID that is live again."""
        self._ids.pop(rid, None)

    def __contains__(self, rid: MessageId) -> bool:
        return rid in self._ids


DropReason = Literal["no_route", "cancelled", "credit_violation", "protocol_violation", "overrun", "debt_limit"]
"""Why a frame goes nowhere, in the words of protocol stats: L51 has the list."""


class FrameCounts:
    """Frames that went nowhere: benign stragglers of ended requests, and drops by reason."""

    def __init__(self, released: ReleasedRing) -> None:
        self._released = released
        self.drops: Counter[tuple[str, str]] = Counter()
        self.stragglers: Counter[str] = Counter()

    def unroutable(self, view: FrameView) -> str | None:
        """Count a frame that found no row. Returns a line for the log if it is a real loss, else None."""
        name = view.type.name.lower()
        if view.id in self._released:
            self.stragglers[name] += 1
            return None
        return self.drop(view, "no_route")

    def drop(self, view: FrameView, reason: DropReason) -> str:
        """Count a dropped frame and return a line for the log."""
        self.drops[reason, view.type.name.lower()] += 1
        of = "" if view.type is FrameType.HEARTBEAT else "of request "
        xid = "" if view.xid is None else f" (xid {show_id(view.xid)})"
        return f"dropped {view.type.name} {of}{show_id(view.id)}{xid}: {reason}"

    def snapshot(self) -> dict[str, Any]:
        """Return the `drops` and `stragglers` parts of protocol stats."""
        by_reason: Counter[str] = Counter()
        nested: dict[str, dict[str, int]] = {}
        for (reason, name), count in self.drops.items():
            by_reason[reason] += count
            nested.setdefault(reason, {})[name] = count
        return {
            "drops": {"total": by_reason.total(), "by_reason": dict(by_reason), "by_reason_frame_type": nested},
            "stragglers": {"total": self.stragglers.total(), "by_frame_type": dict(self.stragglers)},
        }
