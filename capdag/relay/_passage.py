"""Frames on their way along a row, judged by the life of a request (protocol-spec/states.md, Requests)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    XID_HEADROOM,
    DropReason,
    Failure,
    FrameType,
    FrameView,
    read_cancel,
    show_value,
    with_routing_id,
)
from capdag.wire.life import Verdict
from capdag.wire.request_life import REQUEST_LIFE, RequestState, Side

from ._endings import Endings, failure
from ._flow import Flow, Sink
from ._outgoing import Outgoing
from ._rows import Row, Rows

log = logging.getLogger(__name__)


class Passage:
    """Takes frames from one end of a row to the other."""

    def __init__(self, rows: Rows, endings: Endings, out: Outgoing, clock: Callable[[], float]) -> None:
        self._rows = rows
        self._endings = endings
        self._out = out
        self._clock = clock

    def lose(self, view: FrameView, sender: Sink, reason: DropReason | None = None, why: str = "") -> None:
        """Count a frame that goes nowhere: a straggler if its request ended lately, else a drop."""
        line = self._rows.counts.drop(view, reason) if reason else self._rows.counts.unroutable(view)
        if line is not None:
            log.debug("%s: %s%s", sender.name, line, f": {why}" if why else "")

    def take(self, row: Row, side: Side, view: FrameView) -> None:
        """Route a frame that `side` of a request has sent."""
        row.last = self._clock()
        cell = REQUEST_LIFE[row.state][side, view.type]
        if cell.verdict is Verdict.DRAIN:
            self._drain(row, view)
        elif cell.verdict is not Verdict.TAKE:
            self._refuse(row, side, view)
        elif side is Side.HANDLER and row.answer.pending is not None:
            self._rows.released.add(row.rid)  # its terminal has come, and waits for credit
            self.lose(view, row.body.sink)
        elif (why := too_long(view, row.body.sink if side is Side.REQUESTER else row.answer.sink)) is not None:
            self._endings.fail(row, why)
        else:
            ROUTES[view.type](self, row, side, view)

    def _refuse(self, row: Row, side: Side, view: FrameView) -> None:
        """Count a frame that this side of a request may not send now."""
        sender = row.answer.sink if side is Side.REQUESTER else row.body.sink
        if row.state is RequestState.CANCELLED:
            self.lose(view, sender, "cancelled")
        else:
            self.lose(view, sender, "protocol_violation", f"a {side} may not send it (state {row.state})")

    def _body(self, row: Row, side: Side, view: FrameView) -> None:
        """CHUNK and its like, of a body or of an answer."""
        flow = row.body if side is Side.REQUESTER else row.answer
        if not self._admit(row, flow, view):
            return
        if view.type is FrameType.LOG and flow.sink.is_choked:
            why = f"{flow.sink.name} has not read what was sent before"
            self.lose(view, row.body.sink, "overrun", why)
        else:
            self._out.put(flow.sink, _routed(view, row))

    def _terminal(self, row: Row, side: Side, view: FrameView) -> None:
        if side is Side.REQUESTER:
            row.state = RequestState.ANSWER
            self._body(row, side, view)
        elif row.state is RequestState.CANCELLED or self._admit(row, row.answer, view):
            self._endings.finish(row, _routed(view, row))

    def _admit(self, row: Row, flow: Flow, view: FrameView) -> bool:
        """Count a frame; False if it waits for credit, or has ended its request."""
        try:
            return flow.admit(view)
        except RemoteProtocolError as error:
            self._endings.fail(row, failure(error.code, str(error)))
            return False

    def _drain(self, row: Row, view: FrameView) -> None:
        """The handler of a cancelled request may write on until its terminal: count and grant, deliver nothing."""
        self.lose(view, row.body.sink, "cancelled")
        row.answer.swallow(view)
        self._endings.refill(row, least=max(1, row.answer.window // 2))

    def _credit(self, row: Row, side: Side, view: FrameView) -> None:
        """A requester grants for the answer, a handler for the body."""
        flow, sender = (row.answer, row.body.sink) if side is Side.REQUESTER else (row.body, row.answer.sink)
        direction, seen = RESPONSE if side is Side.REQUESTER else REQUEST, view.meta.get("credit_dir")
        if seen != direction:
            why = f"credit_dir of a {side} must be {direction!r}, not {show_value(seen)}"
            self.lose(view, flow.sink, "protocol_violation", why)
            return
        self._out.put(sender, _routed(view, row))
        for held in flow.grant(view):
            if flow is row.answer and held.type in TERMINAL_TYPES:
                self._endings.finish(row, _routed(held, row))
            else:
                self._out.put(flow.sink, _routed(held, row))

    def _cancel(self, row: Row, _side: Side, view: FrameView) -> None:
        self._endings.cancel(row, read_cancel(view.meta), force_kill=view.fields.get(18) is True)

    def _close_stream(self, row: Row, _side: Side, view: FrameView) -> None:
        self._out.put(row.body.sink, _routed(view, row))


_T = FrameType

ROUTES: Mapping[FrameType, Callable[[Passage, Row, Side, FrameView], None]] = {
    _T.CHUNK: Passage._body,
    _T.STREAM_START: Passage._body,
    _T.STREAM_END: Passage._body,
    _T.LOG: Passage._body,
    _T.END: Passage._terminal,
    _T.ERR: Passage._terminal,
    _T.CREDIT: Passage._credit,
    _T.CANCEL: Passage._cancel,
    _T.CLOSE_STREAM: Passage._close_stream,
}
"""Every type that the life of a request takes, from either side."""


def _routed(view: FrameView, row: Row) -> FrameView:
    """Return the frame with its XID. Hosts leave it out where the RID says enough."""
    return view if view.xid is not None else with_routing_id(view, row.xid)


def too_long(view: FrameView, sink: Sink) -> Failure | None:
    """Return why a frame cannot go to `sink`, if it is longer than its link takes once it has its XID."""
    size = len(view.body) + (XID_HEADROOM if view.xid is None else 0)
    if size <= sink.max_frame:
        return None
    message = f"{view.type.name} of {size} bytes is over the receiving link's max_frame of {sink.max_frame}"
    return failure("PROTOCOL_VIOLATION", message)
