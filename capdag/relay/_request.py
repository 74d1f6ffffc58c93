"""A request of a caller in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

from capdag.errors import LocalProtocolError
from capdag.wire import FLOW_TYPES, USER_CANCEL, CancelReason, Frame, FrameType, FrameView, Limits, MessageId, view_of
from capdag.wire.life import Verdict
from capdag.wire.request_life import REQUEST_LIFE, RequestState, Side

from ._endings import Endings
from ._masters import Master
from ._outgoing import Outgoing
from ._passage import Passage
from ._router import Router
from ._rows import Rows

Deliver = Callable[[list[FrameView]], None]
"""Takes what has come for a request, in order, its terminal last. Synchronous; must not raise."""


class Request:
    """A caller's end of a request. Its methods never wait.

    After the terminal has been delivered, or is on its way, `send` and `cancel` do nothing.
    """

    max_frame = 2**32  # a caller in this process takes any frame

    def __init__(
        self, router: Router, passage: Passage, rows: Rows, endings: Endings, out: Outgoing, deliver: Deliver
    ) -> None:
        self._router = router
        self._passage = passage
        self._rows = rows
        self._endings = endings
        self._out = out
        self._deliver = deliver

    def open(self, cap: str, preferred: str | None) -> None:
        """Send the REQ. Raises RequestFailedError."""
        req = Frame(FrameType.REQ, uuid4().bytes, cap=cap, content_type="application/cbor", payload=b"")
        self._row = self._router.dispatch(view_of(req), self, preferred=preferred)
        master = self._row.body.sink
        assert isinstance(master, Master)
        self.limits: Limits = master.limits
        self.host = master.name
        self._out.flush()

    @property
    def rid(self) -> MessageId:
        """The request's RID: 16 bytes."""
        return self._row.rid

    @property
    def xid(self) -> int:
        """The request's XID at this switch."""
        return self._row.xid

    @property
    def ended(self) -> bool:
        """True once nothing more will come than what has been, or is being, delivered."""
        return self._row.answer.sink is not self or not self._rows.is_live(self._row)

    def emit(self, batch: Sequence[FrameView]) -> None:
        """Deliver frames to the caller. For the switch."""
        self._deliver(list(batch))

    def send(self, frames: Sequence[Frame]) -> None:
        """Send what the life of a request takes from its requester. XID and seq are set here.

        Raises LocalProtocolError for a type that is not a caller's to send, or a frame that cannot be encoded.
        """
        for frame in frames:
            if REQUEST_LIFE[RequestState.BODY][Side.REQUESTER, frame.frame_type].verdict is not Verdict.TAKE:
                raise LocalProtocolError(f"{frame.frame_type.name} is not a caller's to send")
            if self.ended:
                break
            frame.routing_id = self._row.xid
            frame.seq = self._row.body.last_seq + 1 if frame.frame_type in FLOW_TYPES else 0
            self._passage.take(self._row, Side.REQUESTER, view_of(frame))
        self._out.flush()

    def cancel(self, reason: CancelReason = USER_CANCEL, *, force_kill: bool = False) -> None:
        """Send CANCEL, to the handler and to all calls it has made. The terminal still comes."""
        if not self.ended:
            self._endings.cancel(self._row, reason, force_kill=force_kill)
            self._out.flush()
