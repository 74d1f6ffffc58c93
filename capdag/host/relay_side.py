"""Frames from the relay, on their way to cartridges (protocol-spec/host.md, Routing)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from capdag.errors import AttributionClass, RemoteProtocolError
from capdag.urn import CapUrn, UrnError
from capdag.wire import (
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    Failure,
    FrameType,
    FrameView,
    TableFullError,
    err_frame,
    policy_frame,
    read_policy,
    show_value,
    view_of,
)
from capdag.wire.blocks import ChunkRun, Parcel

from .cartridge import IDENTITY, Cartridge
from .debt import UNBOUNDED, UNCREDITED_LIMIT
from .endings import Endings
from .exchange import Exchange
from .flows import Flow
from .lifecycle import QUEUING, SERVING, STARTABLE, State
from .rows import IncomingRow, OutgoingRow

_ENVIRONMENT, _INTERNAL = AttributionClass.ENVIRONMENT, AttributionClass.INTERNAL


class RelaySide:
    """Routes what the relay sends. `running` are the cartridges with a session, `echo` serves the identity cap."""

    def __init__(self, exchange: Exchange, endings: Endings, running: Collection[Cartridge], echo: Cartridge) -> None:
        self._x = exchange
        self._endings = endings
        self._running = running
        self._echo = echo
        self._routes: Mapping[FrameType, Callable[[FrameView], None]] = {
            FrameType.REQ: self._request,
            FrameType.STREAM_START: self._flow,
            FrameType.CHUNK: self._flow,
            FrameType.STREAM_END: self._flow,
            FrameType.END: self._flow,
            FrameType.ERR: self._flow,
            FrameType.LOG: self._response,
            FrameType.CREDIT: self._credit,
            FrameType.CANCEL: self._cancel,
            FrameType.CLOSE_STREAM: self._close_stream,
            FrameType.POLICY: self._policy,
            FrameType.RELAY_STATE: self._relay_state,
            FrameType.HEARTBEAT: self._heartbeat,
        }

    def route(self, batch: Sequence[Parcel]) -> None:
        """Route the frames of one read. Raises RemoteProtocolError for one that no relay may send."""
        for parcel in batch:
            if isinstance(parcel, ChunkRun):
                self._run(parcel)
                continue
            route = self._routes.get(parcel.type)
            if route is None:
                name = parcel.type.name
                raise RemoteProtocolError(f"the relay sent {name}, which only a host or a cartridge may send")
            route(parcel)

    def _run(self, run: ChunkRun) -> None:
        """Route a run of CHUNKs at once, or one by one if anything stands in the way of one of them."""
        way: tuple[Flow, Cartridge] | None = None
        row = self._x.incoming.find((run.xid, run.id))
        if row is None:
            call = self._call_of(run)
            if call is not None and not call.cancelled:
                way = call.answer, call.cartridge
        elif not (row.queued or row.answer.ended or row.caller or row.cancellation):
            way = row.body, row.cartridge
        if way is not None and run.largest_body <= way[1].limits.max_frame and way[0].takes(run):
            self._x.send_down(way[1], run)
        else:
            for view in run.views():
                self._flow(view)

    # Requests

    def _request(self, view: FrameView) -> None:
        x = self._x
        key = (view.xid, view.id)
        if x.incoming.find(key) is not None:
            x.drop(view, "protocol_violation", None, "this is the id and XID of a live request: use a new id for each")
            return
        caller = self._caller_here(view)
        found = self._serving(view, caller.cartridge if caller is not None else None)
        if isinstance(found, Failure):
            x.send_up(err_frame(view.id, found, xid=view.xid))
            return
        row = IncomingRow(view.xid, view.id, found, caller)
        try:
            x.incoming.register(key, row)
        except TableFullError as error:
            x.send_up(err_frame(view.id, Failure(error.code, error.attribution, str(error)), xid=view.xid))
            return
        x.released.discard(view.id)
        found.rows[key] = row
        if caller is not None:
            caller.served, caller.xid = row, view.xid
        if found.state in SERVING:
            self.give(row, view)
        else:
            found.waiting.append((row, view))
            if found.state in STARTABLE:
                x.start(found)

    def _caller_here(self, view: FrameView) -> OutgoingRow | None:
        """Return the call of a cartridge of this host that has come back to be served here, if it is one."""
        call = self._x.outgoing.find(view.id)
        return call if call is not None and call.xid is None and view.xid is not None else None

    def _serving(self, view: FrameView, payer: Cartridge | None) -> Cartridge | Failure:
        """Choose the cartridge that serves a REQ, or say why there is none. `payer`: who of this host has sent it."""
        x, named = self._x, view.fields.get(10)
        if x.closing is not None:
            return x.closing.failure()
        if x.policy is None:
            text = "a REQ came before any POLICY: the relay must send one first"
            return Failure("PROTOCOL_VIOLATION", _INTERNAL, text)
        if not x.debt.has_room(x.limits, payer):
            return x.no_room(payer)
        if named is None:
            return Failure("INVALID_REQUEST", AttributionClass.INPUT, "a REQ must name a cap URN in key 10")
        try:
            cap = CapUrn.parse(named)
        except UrnError as error:
            return Failure("INVALID_REQUEST", AttributionClass.INPUT, f"{show_value(named)} is no cap URN: {error}")
        if cap == IDENTITY:
            return self._echo
        found = x.caps.best_match(cap, usable=self._is_usable) or x.caps.best_match(cap)
        if found is None:
            return Failure("NO_HANDLER", _ENVIRONMENT, f"no cartridge of this host serves {cap}")
        return found if self._is_usable(found) else self.unusable(found)

    def _is_usable(self, cartridge: Cartridge) -> bool:
        if cartridge.state in STARTABLE:
            return cartridge.not_before <= self._x.clock()
        return cartridge.state is State.RUNNING or cartridge.state in QUEUING

    def unusable(self, cartridge: Cartridge) -> Failure:
        """Say why a cartridge takes no request now."""
        if cartridge.state is State.UNHEALTHY:
            text = f"cartridge {cartridge.id!r} does not answer its heartbeats; it is killed or heals shortly"
            return Failure("CARTRIDGE_UNHEALTHY", _ENVIRONMENT, text)
        trouble = cartridge.trouble or Failure("SPAWN_FAILED", _ENVIRONMENT, "it did not start")
        if cartridge.state is State.BROKEN:
            text = f"{trouble.message}; it is not started again until it is reset (capdag ps --reset {cartridge.id})"
        else:
            pause = cartridge.not_before - self._x.clock()
            text = f"{trouble.message}; the next try is in {pause:.1f} s (or after capdag ps --reset {cartridge.id})"
        return Failure("SPAWN_FAILED", _ENVIRONMENT, text, trouble.detail)

    def give(self, row: IncomingRow, view: FrameView) -> None:
        """Pass a frame of a request on to its process, which is ready."""
        cartridge = row.cartridge
        if row.cancellation is not None:
            self._x.drop(view, "cancelled", None)
            return
        if row.queued:
            row.bind(cartridge.limits, self._x.limits, cartridge.max_streams)
        if len(view.body) > cartridge.limits.max_frame:
            failure = _too_long(view, cartridge)
            if view.type is FrameType.REQ:
                self._endings.settle(row, failure)
            else:
                self._endings.refuse(row, failure)
        elif view.type not in UNBOUNDED and not cartridge.backlog.admits(view):
            self._endings.refuse(row, self._overrun(cartridge, view))
        elif row.body.offer(view):
            self._x.send_down(cartridge, view)

    def _keep(self, row: IncomingRow, view: FrameView) -> None:
        """Have a frame wait with its request for a process that is not ready."""
        if view.type not in UNBOUNDED:
            row.kept += len(view.body)
        if row.kept > UNCREDITED_LIMIT:
            self._endings.turn_away(row, self._overrun(row.cartridge, view))
        else:
            row.cartridge.waiting.append((row, view))

    def _overrun(self, cartridge: Cartridge, view: FrameView) -> Failure:
        """Drop a frame for which a cartridge's queue has no room, and return what its request ends with."""
        self._x.drop(view, "protocol_violation", None)
        text = (
            f"over {UNCREDITED_LIMIT} bytes of {view.type.name} and the like of one request wait for cartridge "
            f"{cartridge.id!r} to read"
        )
        return Failure("PROTOCOL_VIOLATION", _INTERNAL, text)

    def ready(self, cartridge: Cartridge) -> None:
        """Give a process that has become ready the policy, and then what waited for it, in order."""
        x = self._x
        if x.policy is not None:
            x.send_down(cartridge, view_of(policy_frame(x.policy)))
        waiting, cartridge.waiting = cartridge.waiting, []
        for row, view in waiting:
            if not row.passed:
                self.give(row, view)

    # Frames of live requests

    def _flow(self, view: FrameView) -> None:
        row = self._x.incoming.find((view.xid, view.id))
        if row is not None and (row.caller is None or self._is_body(row, row.caller, view)):
            self._body(row, view)
        else:
            self._response(view)

    @staticmethod
    def _is_body(row: IncomingRow, caller: OutgoingRow, view: FrameView) -> bool:
        """Tell the two directions of a call apart whose caller and handler are both here.

        Both have passed through this host on their way up, so what each sent is known. Order says little: the switch
        forwards no more of a body once the call is cancelled or answered.
        """
        if row.body.ended:
            return False
        if view.type in TERMINAL_TYPES:
            sent = caller.body_terminal
            if sent is None:  # the switch made it: if the answer is past its number, to end the body with the CANCEL
                return row.cancellation is not None and view.seq < caller.answer.next_seq
            return (view.type, view.seq, view.meta) == (sent.type, sent.seq, sent.meta)
        by_caller = caller.body.edge is not None and view.stream_id in caller.body.edge.remaining
        by_handler = row.answer.edge is not None and view.stream_id in row.answer.edge.remaining
        return by_caller or not by_handler

    def _body(self, row: IncomingRow, view: FrameView) -> None:
        if row.answer.ended:
            self._x.unroutable(view)
            return
        if row.body.ended:
            self._x.drop(view, "protocol_violation", None, "the body of this request has ended")
            return
        row.body.note(view)
        if row.cancellation is None and row.body.opens(view) and not self._x.debt.lend(row.body, self._x.limits):
            self._x.drop(view, "debt_limit", None)
            self._endings.turn_away(row, self._x.no_room(row.body.payer))
        elif row.queued:
            self._keep(row, view)
        else:
            self.give(row, view)

    def _response(self, view: FrameView) -> None:
        call = self._call_of(view)
        if call is None or call.answer.ended:
            if view.type in TERMINAL_TYPES:
                self._x.given_up.discard(view.id)
            self._x.unroutable(view)
            return
        if len(view.body) > call.cartridge.limits.max_frame:
            self._endings.fail_call(call, _too_long(view, call.cartridge))
            return
        call.answer.note(view)
        if call.cancelled and view.type not in TERMINAL_TYPES:
            self._x.drop(view, "cancelled", None)
        elif call.answer.opens(view) and not self._x.debt.lend(call.answer, self._x.limits):
            self._x.drop(view, "debt_limit", None)
            self._endings.fail_call(call, self._x.no_room(call.cartridge))
        elif call.answer.offer(view) and self._fits(call, view):
            self._endings.pass_response(call, view)

    def _fits(self, call: OutgoingRow, view: FrameView) -> bool:
        """True if a frame may join the queue to the caller, who may not be reading; if only a LOG may not, it is lost.

        Any other frame for which there is no room is the end of the call.
        """
        if view.type in UNBOUNDED or call.cartridge.backlog.admits(view):
            return True
        if view.type is FrameType.LOG:
            self._x.drop(view, "overrun", None, "cartridge %r has not read the LOGs before it", call.cartridge.id)
        else:
            self._endings.fail_call(call, self._overrun(call.cartridge, view))
        return False

    def _call_of(self, view: Parcel) -> OutgoingRow | None:
        """Return the call a frame belongs to; the first frame with an XID binds it."""
        call = self._x.outgoing.find(view.id)
        if call is None or view.xid is None:
            return call
        if call.xid is None:
            call.xid = view.xid
        return call if call.xid == view.xid else None

    def _credit(self, view: FrameView) -> None:
        direction = view.meta.get("credit_dir")
        row = self._x.incoming.find((view.xid, view.id)) if direction == RESPONSE else None
        if row is not None and not row.passed and not row.queued:
            if row.cancellation is not None:
                self._x.drop(view, "cancelled", None)
                return
            if not row.answer.ended:
                if not row.cartridge.backlog.admits(view):
                    self._endings.refuse(row, self._overrun(row.cartridge, view))
                    return
                self._x.send_down(row.cartridge, view)
            for freed in row.answer.grant(view):
                self._endings.pass_answer(row, freed)
            return
        call = self._call_of(view) if direction == REQUEST else None
        if call is None:
            self._lose_credit(view, direction)
            return
        if not self._fits(call, view):
            return
        self._x.send_down(call.cartridge, view)
        for freed in call.body.grant(view):
            self._endings.pass_body(call, freed)

    def _lose_credit(self, view: FrameView, direction: object) -> None:
        is_live = self._x.incoming.find((view.xid, view.id)) is not None or self._call_of(view) is not None
        if is_live and direction not in (REQUEST, RESPONSE):
            why = "credit_dir must be 'request' or 'response', not %s"
            self._x.drop(view, "protocol_violation", None, why, show_value(direction))
        else:
            self._x.unroutable(view)

    def _cancel(self, view: FrameView) -> None:
        row = self._x.incoming.find((view.xid, view.id))
        if row is None or row.passed:
            self._x.unroutable(view)
        else:
            self._endings.cancel(row, view)

    def _close_stream(self, view: FrameView) -> None:
        row = self._x.incoming.find((view.xid, view.id))
        if row is None or row.answer.ended:
            self._x.unroutable(view)
        elif row.queued:
            self._keep(row, view)
        else:
            self.give(row, view)

    # The link itself

    def _policy(self, view: FrameView) -> None:
        self._x.policy = read_policy(view.meta)
        for cartridge in self._running:
            if cartridge.state in SERVING:
                self._x.send_down(cartridge, view)

    def _relay_state(self, view: FrameView) -> None:
        self._x.relay_state = view.fields.get(6) or b""

    def _heartbeat(self, view: FrameView) -> None:
        self._x.drop(view, "no_route", None, "between a host and a switch there are no heartbeats")


def _too_long(view: FrameView, cartridge: Cartridge) -> Failure:
    size, limit = len(view.body), cartridge.limits.max_frame
    text = f"{view.type.name} of {size} bytes is over the max_frame of {limit} that cartridge {cartridge.id!r} takes"
    return Failure("PROTOCOL_VIOLATION", _INTERNAL, text, {"param": "max_frame", "limit": limit, "seen": size})
