"""A request of a caller in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from capdag.errors import LocalProtocolError
from capdag.urn import CapUrn
from capdag.wire import FLOW_TYPES, USER_CANCEL, CancelReason, Frame, FrameType, FrameView, Limits, MessageId, view_of
from capdag.wire.life import Verdict
from capdag.wire.request_life import REQUEST_LIFE, RequestState, Side

from ._endings import Endings
from ._masters import Master
from ._outgoing import Outgoing
from ._passage import Passage
from ._places import Slot
from ._queue import Queue, Waiting
from ._router import Router, wanted_cap
from ._rows import Row, Rows

Deliver = Callable[[list[FrameView]], None]
"""Takes what has come for a request, in order, its terminal last. Synchronous; must not raise."""

Admitted = Callable[["Request"], None]
"""Called when a request has gone out to a host, before anything of its handler comes. Synchronous; must not raise."""


class Request:
    """A caller's end of a request. Its methods never wait.

    It may stand in line at first: then LOGs with `position` in their meta tell where, and nothing can be sent yet. Once
    it has gone out, `host` is the name of the host it went to and `limits` are those of that host's link; `cap` is the
    one that serves it, and `facts` that cap's object of the manifest, None if the host's installs differ in it.
    After the terminal has been delivered, or is on its way, `send` and `cancel` do nothing.
    """

    name = "a caller"
    max_frame = 2**32  # a caller in this process takes any frame
    is_choked = False

    def __init__(
        self, router: Router, passage: Passage, rows: Rows, endings: Endings, queue: Queue, out: Outgoing,
        deliver: Deliver, admitted: Admitted | None,
    ) -> None:  # fmt: skip
        self._router = router
        self._passage = passage
        self._rows = rows
        self._endings = endings
        self._queue = queue
        self._out = out
        self._deliver = deliver
        self._admitted = admitted
        self.ticket: Waiting | None = None
        self._row: Row | None = None
        self.rid: MessageId = uuid4().bytes
        self.xid = rows.next_xid()

    def open(self, cap: str, preferred: str | None, caller: str) -> None:
        """Send the REQ, or stand in line. Raises RequestFailedError."""
        self.wanted = wanted_cap(cap)
        self._req = view_of(Frame(FrameType.REQ, self.rid, cap=cap, content_type="application/cbor", payload=b""))
        line = self._router.choose(self.wanted, preferred, may_wait=True)
        self._queue.enter(self, line, caller, preferred)
        self._out.flush()

    def go(self, slot: Slot[Master]) -> None:
        """Send the REQ to the slot's master. For the queue."""
        master = slot.master
        self._row = self._router.enter(self._req, self.xid, self, master, slot=slot)
        self.limits: Limits = master.limits
        self.host = master.name
        self.cap = slot.line.cap
        self.facts = _facts(master, self.cap)
        if self._admitted is not None:
            self._out.later(partial(self._admitted, self))

    @property
    def waiting(self) -> bool:
        """True while the request stands in line."""
        return self.ticket is not None

    @property
    def ended(self) -> bool:
        """True once nothing more will come than what has been, or is being, delivered."""
        if self._row is None:
            return self.ticket is None
        return self._row.answer.sink is not self or not self._rows.is_live(self._row)

    def emit(self, batch: Sequence[FrameView]) -> None:
        """Deliver frames to the caller. For the switch."""
        self._deliver(list(batch))

    def send(self, frames: Sequence[Frame]) -> None:
        """Send what the life of a request takes from its requester. XID and seq are set here.

        Raises LocalProtocolError for a type that is not a caller's to send, for a frame that cannot be encoded, and
        while the request waits.
        """
        for frame in frames:
            if REQUEST_LIFE[RequestState.BODY][Side.REQUESTER, frame.frame_type].verdict is not Verdict.TAKE:
                raise LocalProtocolError(f"{frame.frame_type.name} is not a caller's to send")
            if self.waiting:
                raise LocalProtocolError("the request waits in line: send when it has been admitted")
            if self._row is None or self.ended:
                break
            frame.routing_id = self.xid
            frame.seq = self._row.body.last_seq + 1 if frame.frame_type in FLOW_TYPES else 0
            self._passage.take(self._row, Side.REQUESTER, view_of(frame))
        self._out.flush()

    def cancel(self, reason: CancelReason = USER_CANCEL, *, force_kill: bool = False) -> None:
        """End the request. One that waits ends at once; else CANCEL goes to the handler and to all calls it has made,
        and the terminal still comes."""
        if self.ticket is not None:
            self._queue.leave(self.ticket, reason)
        elif self._row is not None and not self.ended:
            self._endings.cancel(self._row, reason, force_kill=force_kill)
        self._out.flush()


def _facts(master: Master, cap: CapUrn) -> Mapping[str, Any] | None:
    offers = () if master.notice is None else master.notice.caps
    found = [offer.facts for offer in offers if offer.urn == cap]
    return found[0] if found and all(facts == found[0] for facts in found) else None
