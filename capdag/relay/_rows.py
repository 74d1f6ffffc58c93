"""The switch's table: one row for everything about a request."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, NamedTuple

from capdag.wire import CancelReason, FrameCounts, MessageId, ReleasedRing, RequestTable
from capdag.wire.request_life import RequestState

from ._alarms import Alarm
from ._flow import Flow
from ._places import Slot

RECENT = 64
"""Ended requests that the snapshot shows."""


class Row:
    """A live request. `body` flows to the handler (its sink is the destination), `answer` to the requester.

    `children` are the calls its handler has made; `cancel` is the reason, once CANCEL has gone out; `slot` is what it
    holds in its cartridge's pools, None for a cartridge's own call.
    """

    __slots__ = (
        "alarm", "answer", "body", "cancel", "cap", "children", "created", "force_killed", "is_peer", "last", "parent",
        "rid", "slot", "state", "xid",
    )  # fmt: skip

    def __init__(
        self, rid: MessageId, xid: int, cap: str, body: Flow, answer: Flow, slot: Slot[Any] | None = None
    ) -> None:
        self.rid = rid
        self.xid = xid
        self.cap = cap
        self.body = body
        self.answer = answer
        self.slot = slot
        self.is_peer = slot is None
        self.state = RequestState.BODY
        self.parent: Row | None = None
        self.children: dict[int, Row] = {}
        self.cancel: CancelReason | None = None
        self.force_killed = False
        self.alarm: Alarm | None = None
        self.created = self.last = 0.0


class Ended(NamedTuple):
    """What is remembered of an ended request. `in` counts frames to the requester, `out` those to the handler."""

    xid: int
    rid: MessageId
    kind: str
    is_peer: bool
    cap: str
    lifetime: float
    frames_in: int
    frames_out: int
    bytes_in: int
    bytes_out: int
    cancel: CancelReason | None


class Rows:
    """Live rows by XID and by RID, ended ones, and the counts of frames that found none.

    A row is taken out before its terminal goes out, so that nothing finds it again.
    """

    def __init__(self, limit: int) -> None:
        self._by_xid: RequestTable[int, Row] = RequestTable(limit)
        self._by_rid: dict[MessageId, Row] = {}
        self._last_xid = 0
        self.released = ReleasedRing()
        self.counts = FrameCounts(self.released)
        self.recent: deque[Ended] = deque(maxlen=RECENT)
        self.ended_by_kind: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_xid)

    @property
    def registered_total(self) -> int:
        """Requests accepted so far."""
        return self._by_xid.registered_total

    def next_xid(self) -> int:
        """Return the next XID: they count from 1 and are never used twice."""
        self._last_xid += 1
        return self._last_xid

    def live(self) -> list[Row]:
        """Return the live rows, oldest first."""
        return self._by_xid.rows()

    def is_live(self, row: Row) -> bool:
        """True until the row's terminal."""
        return self._by_xid.find(row.xid) is row

    def register(self, row: Row, now: float) -> None:
        """Enter a row whose RID is not live. Raises TableFullError."""
        self._by_xid.register(row.xid, row)
        self._by_rid[row.rid] = row
        self.released.discard(row.rid)
        row.created = row.last = now

    def find(self, rid: MessageId, xid: MessageId | None = None) -> Row | None:
        """Return the live row of a frame, or None. A frame that names an XID must name both ids right."""
        row = self._by_rid.get(rid)
        return row if row is None or xid is None or row.xid == xid else None

    def take(self, row: Row, kind: str, now: float) -> None:
        """Take a row out, with its ties to parent and children."""
        self._by_xid.take(row.xid)
        del self._by_rid[row.rid]
        self.released.add(row.rid)
        if row.parent is not None:
            row.parent.children.pop(row.xid, None)
        row.children.clear()
        row.parent = None
        self.ended_by_kind[kind] += 1
        self.recent.append(_ended(row, kind, now))

    def link(self, child: Row, parent: Row) -> None:
        """Note that `parent`'s handler made the call `child`."""
        child.parent = parent
        parent.children[child.xid] = child


def _ended(row: Row, kind: str, now: float) -> Ended:
    answer, body = row.answer.counted(), row.body.counted()
    frames_in = sum(stream.frames for stream in answer) + sum(stream.replies for stream in body)
    frames_out = sum(stream.frames for stream in body) + sum(stream.replies for stream in answer)
    bytes_in, bytes_out = (sum(stream.bytes for stream in flow) for flow in (answer, body))
    lifetime = now - row.created
    return Ended(
        row.xid, row.rid, kind, row.is_peer, row.cap, lifetime, frames_in, frames_out, bytes_in, bytes_out, row.cancel
    )
