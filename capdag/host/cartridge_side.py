"""Frames from cartridges, which nobody has to trust, on their way to the relay (protocol-spec/host.md, Routing)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from capdag.errors import AttributionClass, RemoteProtocolError
from capdag.wire import (
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    Failure,
    FrameType,
    FrameView,
    TableFullError,
    err_frame,
    read_log,
    show_id,
    show_value,
)
from capdag.wire.blocks import ChunkRun, Parcel

from .cartridge import Cartridge
from .debt import UNBOUNDED, UNCREDITED_LIMIT, has_share, too_many_calls
from .endings import Endings
from .exchange import Exchange, fitting
from .flows import Fault, Flow
from .health import Health
from .rows import IncomingRow, OutgoingRow

log = logging.getLogger("capdag.host")

_INTERNAL = AttributionClass.INTERNAL

_STRANGER = "the cartridge serves no request, and has made no call, of this id and XID"
_REQUESTERS = "only who made a request may send it, and this one the cartridge serves"
_WRONG_DIRECTION = (
    "credit_dir must be 'request' for the body of a request that the cartridge serves, 'response' for the answer to a "
    "call that it made, not %s"
)


class CartridgeSide:
    """Routes what cartridges send. `health` is given the HEARTBEAT frames, and the ERRs that answer one."""

    def __init__(self, exchange: Exchange, endings: Endings, health: Health) -> None:
        self._x = exchange
        self._endings = endings
        self._health = health
        self._routes: Mapping[FrameType, Callable[[Cartridge, FrameView], None]] = {
            FrameType.STREAM_START: self._flow,
            FrameType.CHUNK: self._flow,
            FrameType.STREAM_END: self._flow,
            FrameType.END: self._flow,
            FrameType.ERR: self._flow,
            FrameType.LOG: self._log,
            FrameType.CREDIT: self._credit,
            FrameType.REQ: self._call,
            FrameType.CANCEL: self._cancel,
            FrameType.CLOSE_STREAM: self._close_stream,
            FrameType.HEARTBEAT: health.heard,
        }

    def route(self, cartridge: Cartridge, batch: Sequence[Parcel]) -> None:
        """Route the frames of one read. One of a type that only hosts send is the end of its cartridge."""
        for parcel in batch:
            if cartridge.muted:
                return
            if isinstance(parcel, ChunkRun):
                self._run(cartridge, parcel)
                continue
            route = self._routes.get(parcel.type)
            if route is None:
                self._violated(cartridge, parcel)
            else:
                route(cartridge, parcel)

    def _run(self, cartridge: Cartridge, run: ChunkRun) -> None:
        """Route a run of CHUNKs at once, or one by one if anything stands in the way of one of them."""
        flow = None
        call = cartridge.calls.get(run.id) if run.xid is None else None
        if call is not None:
            flow = call.body
        elif (row := self._incoming(cartridge, run)) is not None and row.cancellation is None:
            flow = row.answer
        if flow is not None and flow.takes(run):
            self._x.up.append(run)
        else:
            self.route(cartridge, run.views())

    def _violated(self, cartridge: Cartridge, view: FrameView) -> None:
        cartridge.muted = True
        text = f"cartridge {cartridge.id!r} sent {view.type.name}, which a cartridge must not send"
        if cartridge.port is not None:
            cartridge.port.kill(Failure("PROTOCOL_VIOLATION", _INTERNAL, text))

    # Frames of live requests

    def _incoming(self, cartridge: Cartridge, view: Parcel) -> IncomingRow | None:
        """Return the request that the cartridge serves under the ids of a frame."""
        row = cartridge.rows.get((view.xid, view.id))
        return row if row is not None and not row.queued else None

    def _outgoing(self, cartridge: Cartridge, view: FrameView) -> OutgoingRow | None:
        """Return the call that the cartridge made under the ids of a frame; it need not know the XID."""
        call = cartridge.calls.get(view.id)
        return call if call is not None and view.xid in (None, call.xid) else None

    def _flow(self, cartridge: Cartridge, view: FrameView) -> None:
        call = self._outgoing(cartridge, view) if view.xid is None else None
        if call is not None:
            self._body(cartridge, call, view)
            return
        row = self._incoming(cartridge, view)
        if row is None or row.answer.ended:
            if view.type is not FrameType.ERR or not self._health.refused(cartridge, view):
                self._x.unroutable(view, cartridge, _STRANGER)
        else:
            self._answer(cartridge, row, view)

    def _log(self, cartridge: Cartridge, view: FrameView) -> None:
        """Route a LOG of an answer if it can be read; one that cannot would be lost without a trace at its reader."""
        row = self._incoming(cartridge, view)
        if row is not None and not row.answer.ended:
            try:
                record = read_log(view.meta)
            except RemoteProtocolError as error:
                row.answer.note(view)
                self._x.drop(view, "protocol_violation", cartridge, "%s", error)
                return
            if record.level == "progress" and record.progress is None:
                self._tell_progress(cartridge, view)
        self._flow(cartridge, view)

    def _tell_progress(self, cartridge: Cartridge, view: FrameView) -> None:
        if cartridge.told.is_news("progress"):
            seen = show_value(view.meta.get("progress"))
            log.warning(
                "cartridge %r: progress of a LOG must be a number from 0.0 to 1.0, not %s: its message stands alone",
                cartridge.id, seen,
            )  # fmt: skip

    def _answer(self, cartridge: Cartridge, row: IncomingRow, view: FrameView) -> None:
        flow = row.answer
        flow.note(view)
        if flow.ended:  # from here on nothing is the handler's any more, even if the END has to wait for credit
            self._x.released.add(row.rid)
        if row.cancellation is not None:
            if view.type in TERMINAL_TYPES:
                self._endings.end_cancelled(row, view)
            else:
                self._endings.throw_away(row, view)
            return
        failure = self._failure(cartridge, flow, view)
        if failure is not None:
            self._endings.refuse(row, failure)
        elif flow.offer(view) and self._fits(cartridge, view):
            self._endings.pass_answer(row, view)

    def _body(self, cartridge: Cartridge, call: OutgoingRow, view: FrameView) -> None:
        flow = call.body
        if flow.ended:
            self._x.drop(view, "protocol_violation", cartridge, "the body of this call has ended")
            return
        flow.note(view)
        failure = self._failure(cartridge, flow, view)
        if failure is not None:
            self._endings.fail_call(call, failure)
        elif flow.offer(view) and self._fits(cartridge, view):
            self._endings.pass_body(call, view)

    def _failure(self, cartridge: Cartridge, flow: Flow, view: FrameView) -> Failure | None:
        """Count a frame of a flow. Returns why its request has to end; the frame is then dropped."""
        x = self._x
        if flow.opens(view) and not x.debt.lend(flow, cartridge.limits):
            x.drop(view, "debt_limit", cartridge)
            return x.no_room(flow.payer)
        fault = flow.edge.fault(view) if flow.edge is not None else None
        if fault is None:
            may_pass = view.type in UNBOUNDED or view.type is FrameType.LOG  # see _fits
            return None if may_pass else self._overrun(cartridge, view)
        return self._blame(cartridge, view, fault)

    def _overrun(self, cartridge: Cartridge, view: FrameView) -> Failure | None:
        """Return why a request has to end whose frames, uncredited, fill the relay's queue."""
        if self._x.backlog.admits(view):
            return None
        text = f"sent {view.type.name} frames that wait unread: over {UNCREDITED_LIMIT} bytes of one request"
        return self._blame(cartridge, view, Fault("PROTOCOL_VIOLATION", text))

    def _blame(self, cartridge: Cartridge, view: FrameView, fault: Fault) -> Failure:
        self._x.drop(view, fault.drop_reason, cartridge)
        text = f"cartridge {cartridge.id!r} {fault.text}"
        log.error("%s: %s", fault.code, text)
        return Failure(fault.code, _INTERNAL, text)

    def _fits(self, cartridge: Cartridge, view: FrameView) -> bool:
        """True if a frame may join the relay's queue; of LOG frames that are not read, there is an end."""
        if view.type is not FrameType.LOG or self._x.backlog.admits(view):
            return True
        self._x.drop(view, "overrun", cartridge, "the relay has not read the LOGs before it")
        return False

    def _credit(self, cartridge: Cartridge, view: FrameView) -> None:
        direction = view.meta.get("credit_dir")
        row = self._incoming(cartridge, view) if direction == REQUEST else None
        call = self._outgoing(cartridge, view) if direction == RESPONSE else None
        if row is not None:
            if row.cancellation is not None:
                self._x.drop(view, "cancelled", cartridge)
                return
            failure = self._overrun(cartridge, view)
            if failure is not None:
                self._endings.refuse(row, failure)
                return
            self._x.up.append(view)
            self._x.send_down(cartridge, *row.body.grant(view))
        elif call is not None:
            if self._call_fits(cartridge, call, view):
                self._x.up.append(view)
                for freed in call.answer.grant(view):
                    self._endings.pass_response(call, freed)
        else:
            self._stray(cartridge, view, _WRONG_DIRECTION, show_value(direction))

    def _stray(self, cartridge: Cartridge, view: FrameView, why: str, *values: object) -> None:
        """Count a frame that its sender may not send: `why`, if there is such a request, else it has no route."""
        if (view.xid, view.id) in cartridge.rows or view.id in cartridge.calls:
            self._x.drop(view, "protocol_violation", cartridge, why, *values)
        else:
            self._x.unroutable(view, cartridge, _STRANGER)

    # Calls

    def _call(self, cartridge: Cartridge, view: FrameView) -> None:
        x = self._x
        if view.id in cartridge.calls:
            # One caller, one id, two calls: a terminal for one would be taken for the other's.
            x.drop(view, "protocol_violation", cartridge, "this is the id of a live call: use a new one for each")
            return
        parent = cartridge.row_of(view.meta.get("parent_rid"))
        refusal = self._refusal(cartridge, view, parent)
        call = OutgoingRow(view.id, cartridge, parent, x.limits)
        if refusal is None:
            try:
                x.outgoing.register(view.id, call)
            except TableFullError as error:
                refusal = Failure(error.code, error.attribution, str(error))
        if refusal is not None:
            if x.outgoing.find(view.id) is None:
                x.released.add(view.id)
            err = err_frame(view.id, refusal, xid=view.xid)
            self._refuse_call(cartridge, fitting(err, cartridge.limits.max_frame))
            return
        x.released.discard(view.id)
        cartridge.calls[view.id] = call
        if parent is not None:
            parent.calls[view.id] = call
        call.body.note(view)
        x.up.append(view)

    def _refuse_call(self, cartridge: Cartridge, err: FrameView) -> None:
        """Tell a cartridge that its call is not taken. What one that reads nothing is still told has an end."""
        if cartridge.backlog.admits(err, owner="refused calls"):
            self._x.send_down(cartridge, err)
        else:
            self._x.drop(err, "overrun", cartridge, "it makes calls, and does not read that they are refused")

    def _refusal(self, cartridge: Cartridge, view: FrameView, parent: IncomingRow | None) -> Failure | None:
        if view.xid is not None:
            text = "a call of a cartridge has no XID: the switch gives it one"
            return Failure("PROTOCOL_VIOLATION", _INTERNAL, text)
        if self._x.outgoing.find(view.id) is not None or view.id in self._x.given_up:
            text = f"the id {show_id(view.id)} is that of a call that has not ended: use a new id for each call"
            return Failure("PROTOCOL_VIOLATION", _INTERNAL, text)
        if self._x.closing is not None:
            return self._x.closing.failure()
        if parent is not None and parent.cancellation is not None:
            return parent.cancellation.reason.failure()
        if not has_share(len(cartridge.calls), self._x.outgoing.limit - len(self._x.outgoing)):
            failure = too_many_calls(cartridge.id, len(cartridge.calls), self._x.outgoing.limit)
            self._x.tell_trouble(cartridge, "calls", failure)
            return failure
        return None if self._x.debt.has_room(cartridge.limits, cartridge) else self._x.no_room(cartridge)

    def _cancel(self, cartridge: Cartridge, view: FrameView) -> None:
        call = self._outgoing(cartridge, view)
        if call is None:
            self._stray(cartridge, view, _REQUESTERS)
        elif not call.cancelled or (view.fields.get(18) is True and self._x.backlog.admits(view)):
            self._endings.cancel_call(call, view)

    def _close_stream(self, cartridge: Cartridge, view: FrameView) -> None:
        call = self._outgoing(cartridge, view)
        if call is None:
            self._stray(cartridge, view, _REQUESTERS)
        elif self._call_fits(cartridge, call, view):
            self._x.up.append(view)

    def _call_fits(self, cartridge: Cartridge, call: OutgoingRow, view: FrameView) -> bool:
        """True if a frame of a call may join the relay's queue; otherwise the call has failed."""
        failure = self._overrun(cartridge, view)
        if failure is not None:
            self._endings.fail_call(call, failure)
        return failure is None
