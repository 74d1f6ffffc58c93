"""How requests end: once for whoever asked, whatever dies in between (protocol-spec/host.md, Endings).

A row leaves its table before, or in the same step as, its terminal is sent, and with it every trace of the request.
"""

from __future__ import annotations

from capdag.errors import AttributionClass
from capdag.wire import (
    RESPONSE,
    TERMINAL_TYPES,
    CancelReason,
    Failure,
    FrameType,
    FrameView,
    ReleasedRing,
    cancel_frame,
    credit_frame,
    err_frame,
    failure_of,
    is_success,
    read_cancel,
    view_of,
)

from .cartridge import Cartridge
from .exchange import Exchange
from .rows import Cancellation, IncomingRow, OutgoingRow


class Endings:
    """Ends requests in the tables of one exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._x = exchange

    # Requests that cartridges serve

    def pass_answer(self, row: IncomingRow, view: FrameView) -> None:
        """Send a frame of the answer to the relay; a terminal ends the request."""
        if view.type in TERMINAL_TYPES:
            self._release(row, None if is_success(view.meta) else failure_of(view.meta))
            row.cartridge.crashes = 0
        self._x.up.append(view)

    def settle(self, row: IncomingRow, failure: Failure) -> None:
        """End a request with an ERR of the host's own. Its handler is gone, or was never given it."""
        row.answer.ended = True
        self._release(row, failure)
        self._x.send_up(err_frame(row.rid, failure, xid=row.xid, seq=row.answer.next_seq))

    def refuse(self, row: IncomingRow, failure: Failure) -> None:
        """End a request whose rules were broken: ERR to its requester now, CANCEL to its handler, which winds down."""
        if row.cancellation is not None:
            return
        row.settled = True
        self._x.released.add(row.rid)
        self._x.send_up(err_frame(row.rid, failure, xid=row.xid, seq=row.answer.next_seq))
        reason = CancelReason(failure.code, failure.attribution, failure.message)
        self._x.send_cancel_down(row, reason)
        self._wind_down(row, reason, force_kill=False)

    def turn_away(self, row: IncomingRow, failure: Failure) -> None:
        """End a request for which there is no room, whether or not its handler has been given it."""
        if row.queued:
            self._unqueue(row)
            self.settle(row, failure)
        else:
            self.refuse(row, failure)

    def _unqueue(self, row: IncomingRow) -> None:
        row.cartridge.waiting = [kept for kept in row.cartridge.waiting if kept[0] is not row]

    def _release(self, row: IncomingRow, failure: Failure | None) -> None:
        """Forget a request whose terminal goes out now, and cancel the calls that its handler has left open.

        One that was called from this host stays until its terminal has come back for the caller: without the row
        what is left of the body would pass for the answer.
        """
        x, cartridge = self._x, row.cartridge
        row.passed = True
        x.debt.settle(row.body, row.answer)
        if cartridge.rows.pop(row.key, None) is not None and row.cancellation is not None:
            cartridge.cancelling -= 1
        x.released.add(row.rid)
        if row.caller is None or x.outgoing.find(row.rid) is not row.caller:
            x.incoming.take(row.key)
        if row.calls:
            self._cancel_calls(row, _orphaned(failure))
        self._note_idle(cartridge)
        if cartridge.cancelling:
            cartridge.wake()  # it may have become the only ones that are left, whose grace is shorter

    # Cancel

    def cancel(self, row: IncomingRow, view: FrameView) -> None:
        """Take a CANCEL that the relay sent for a request."""
        reason = read_cancel(view.meta)
        force_kill = view.fields.get(18) is True
        cartridge = row.cartridge
        if row.queued:
            self._unqueue(row)
            failure = reason.failure()
            self.settle(row, failure._replace(message=f"{failure.message} (while queued)"))
        elif row.answer.ended:
            row.answer.discard()  # the handler has ended; its requester no longer grants what waits
            self.settle(row, reason.failure())
        elif row.cancellation is None:
            if len(view.body) <= cartridge.limits.max_frame:
                self._x.send_down(cartridge, view)
            else:
                self._x.send_cancel_down(row, reason, force_kill=force_kill)
            self._wind_down(row, reason, force_kill=force_kill)
        if force_kill and cartridge.port is not None and not row.passed:
            cartridge.port.kill(_bystander(cartridge, reason))

    def _wind_down(self, row: IncomingRow, reason: CancelReason, *, force_kill: bool) -> None:
        """From here on frames of the request are thrown away, and what the handler still sends is granted."""
        row.cancellation = Cancellation(reason, self._x.clock())
        row.cartridge.cancelling += 1
        row.body.discard()
        for held in row.answer.discard():
            self._x.drop(held, "cancelled", row.cartridge)
            row.discarded = True
        for stream, owed in row.answer.ungranted():
            self._grant(row, stream, owed)
        self._cancel_calls(row, reason, force_kill=force_kill)
        row.cartridge.wake()

    def _cancel_calls(self, row: IncomingRow, reason: CancelReason, *, force_kill: bool = False) -> None:
        """Cancel what the handler of a request has called. Each call stays until its callee's terminal."""
        for call in list(row.calls.values()):
            if not call.cancelled:
                frame = cancel_frame(call.rid, reason, xid=call.xid, force_kill=force_kill)
                self.cancel_call(call, self._x.for_relay(frame))

    def throw_away(self, row: IncomingRow, view: FrameView) -> None:
        """Discard a frame of a cancelled answer; a CHUNK is granted, so that no handler blocks on credit."""
        self._x.drop(view, "cancelled", row.cartridge)
        row.discarded = True
        if view.type is FrameType.CHUNK and view.stream_id is not None:
            self._grant(row, view.stream_id, 1)

    def _grant(self, row: IncomingRow, stream_id: str, credit: int) -> None:
        """Grant to a handler; one that does not read what it is granted needs no more."""
        grant = view_of(credit_frame(row.rid, stream_id, credit, RESPONSE, xid=row.xid))
        if row.cartridge.backlog.admits(grant):
            self._x.send_down(row.cartridge, grant)

    def end_cancelled(self, row: IncomingRow, view: FrameView) -> None:
        """Take the terminal of a cancelled request. A success of which part was thrown away is no success."""
        reason = row.cancellation.reason if row.cancellation is not None else CancelReason()
        if row.settled:
            self._x.drop(view, "cancelled", row.cartridge)
            self._release(row, reason.failure())
        elif view.type is FrameType.END and row.discarded:
            self.settle(row, reason.failure())
        else:
            self.pass_answer(row, view)

    # Calls that cartridges made

    def pass_body(self, call: OutgoingRow, view: FrameView) -> None:
        """Send a frame of a call's body to the relay."""
        if view.type in TERMINAL_TYPES:
            call.body_terminal = view
        self._x.up.append(view)

    def pass_response(self, call: OutgoingRow, view: FrameView) -> None:
        """Hand a frame of the answer to the caller; a terminal ends the call."""
        if view.type in TERMINAL_TYPES:
            self._forget(call)
        self._x.send_down(call.cartridge, view)

    def cancel_call(self, call: OutgoingRow, view: FrameView) -> None:
        """Send the CANCEL of a call on. From here on only its terminal reaches the caller, who no longer grants."""
        if call.cancellation is None:
            call.cancellation = Cancellation(read_cancel(view.meta), self._x.clock())
        held = call.answer.discard()
        if call.answer.ended:
            self.pass_response(call, held[-1])
        else:
            self._x.up.append(view)
            call.cartridge.wake()

    def expire_call(self, call: OutgoingRow, reason: CancelReason) -> None:
        """End a cancelled call whose terminal does not come: not every switch has one for what it could not route."""
        text = f"{reason.message} (no terminal came within call_grace, {self._x.settings.call_grace:g} s)"
        self._x.send_err_down(call, reason.failure()._replace(message=text))
        self.abandon(call, reason)

    def fail_call(self, call: OutgoingRow, failure: Failure) -> None:
        """End a call whose rules were broken: ERR to its caller now, CANCEL to its handler."""
        self._x.send_err_down(call, failure)
        self.abandon(call, CancelReason(failure.code, failure.attribution, failure.message))

    def abandon(self, call: OutgoingRow, reason: CancelReason) -> None:
        """Give up the caller's half of a call: the callee is cancelled, and told of a body that will not end."""
        x = self._x
        body_was_open, call.body.ended = not call.body.ended, True
        self._forget(call)
        if call.answer.ended:  # the callee is done; its answer waited for the caller's credit
            return
        x.given_up.add(call.rid)
        if body_was_open:
            self.pass_body(call, x.for_relay(err_frame(call.rid, reason.failure(), seq=call.body.next_seq)))
        if not call.cancelled:
            x.send_up(cancel_frame(call.rid, reason))

    def _forget(self, call: OutgoingRow) -> None:
        x, cartridge = self._x, call.cartridge
        x.outgoing.take(call.rid)
        x.debt.settle(call.body, call.answer)
        x.released.add(call.rid)
        cartridge.calls.pop(call.rid, None)
        if call.parent is not None:
            call.parent.calls.pop(call.rid, None)
        served = call.served
        if served is not None and served.passed:
            x.incoming.take(served.key)  # it was kept for the answer's way back
        self._note_idle(cartridge)

    def _note_idle(self, cartridge: Cartridge) -> None:
        if cartridge.is_idle:
            cartridge.idle_since = self._x.clock()
            if cartridge.retired_at is not None:
                cartridge.wake()

    # Everything at once

    def settle_death(self, cartridge: Cartridge, failure: Failure) -> int:
        """End what a dead process held; returns how many requests got their ERR by it.

        What it was not yet given stays for the next process.
        """
        settled = 0
        reason = CancelReason("ABORTED_COLLATERAL", failure.attribution, f"its caller died: {failure.message}")
        for call in list(cartridge.calls.values()):  # first: nobody is left who could be told how they end
            self.abandon(call, reason)
        for row in list(cartridge.rows.values()):
            if row.queued:
                continue
            if row.settled:
                self._release(row, failure)
            elif row.answer.ended:  # whole, it waits for its requester's credit only
                del cartridge.rows[row.key]
            else:
                settled += 1
                row.answer.discard()
                self.settle(row, row.cancellation.reason.failure() if row.cancellation else failure)
        return settled

    def settle_waiting(self, cartridge: Cartridge, failure: Failure) -> int:
        """End what waited for a process that did not start; returns how many."""
        cartridge.waiting.clear()
        queued = [row for row in cartridge.rows.values() if row.queued]
        for row in queued:
            self.settle(row, failure)
        return len(queued)

    def settle_all(self, reason: CancelReason) -> None:
        """End everything the host holds, while its link is up: the first step of an ordered shutdown."""
        x = self._x
        x.closing = reason
        for call in x.outgoing.rows():
            x.send_err_down(call, reason.failure())
            self.abandon(call, reason)
        for row in x.incoming.rows():
            row.cartridge.waiting.clear()
            if row.settled or row.passed:
                self._release(row, None)
                continue
            x.send_cancel_down(row, reason)
            row.answer.discard()
            self.settle(row, reason.failure())

    def relay_lost(self, reason: CancelReason) -> None:
        """The link is gone: nobody is left to answer, so everything is cancelled and every call fails."""
        x = self._x
        x.closing = reason
        for row in x.incoming.rows():
            row.cartridge.waiting.clear()
            if row.queued or row.answer.ended:
                self._release(row, None)
            else:
                row.settled = True
                if row.cancellation is None:
                    x.send_cancel_down(row, reason)
                    self._wind_down(row, reason, force_kill=False)
        for call in x.outgoing.rows():
            x.send_err_down(call, reason.failure())
            call.answer.ended = True
            self.abandon(call, reason)
        x.given_up = ReleasedRing()  # no terminal comes for them


def _orphaned(failure: Failure | None) -> CancelReason:
    """Return why the calls of a request are cancelled that has ended, with a failure or well."""
    if failure is None:
        text = "the request that it was made for has ended"
        return CancelReason("ABORTED_COLLATERAL", AttributionClass.ENVIRONMENT, text)
    text = f"the request that it was made for has failed: {failure.message}"
    return CancelReason("ABORTED_COLLATERAL", failure.attribution, text)


def _bystander(cartridge: Cartridge, reason: CancelReason) -> Failure:
    """What a kill under `reason` means to the other requests of the process: never that their user cancelled them."""
    text = f"cartridge {cartridge.id!r} was ended by the force_kill of a request that it held: {reason.message}"
    if reason.attribution is AttributionClass.USER:
        return Failure("ABORTED_COLLATERAL", AttributionClass.ENVIRONMENT, text)
    return Failure(reason.code, reason.attribution, text)
