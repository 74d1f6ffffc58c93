"""How requests end: by their terminal, by cancel, by failure, by the death of a link.

The law: every requester gets exactly one terminal, and the row is out of the table before it goes out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from capdag.errors import CODES
from capdag.wire import (
    RESPONSE,
    CancelReason,
    Failure,
    FrameType,
    FrameView,
    cancel_frame,
    credit_frame,
    err_frame,
    view_of,
)
from capdag.wire.request_life import RequestState

from ._alarms import Alarms
from ._flow import NOBODY
from ._masters import Master
from ._outgoing import Outgoing
from ._places import Slot
from ._rows import Row, Rows

CLOSING = "the switch is shutting down; the request can be sent again later"

_LONGEST_TEXT = 1_000
"""Characters of a reason that is passed on: another link may take shorter frames than the one it came by."""


def failure(code: str, message: str) -> Failure:
    """Return a failure of this project's own, with the class its code goes with."""
    return Failure(code, CODES[code].attribution, message)


class Endings:
    """Ends rows. Every method changes the table first and puts frames after."""

    def __init__(
        self, rows: Rows, out: Outgoing, alarms: Alarms, clock: Callable[[], float], cancel_deadline: float,
        release: Callable[[Slot[Any]], None],
    ) -> None:  # fmt: skip
        self._rows = rows
        self._out = out
        self._alarms = alarms
        self._clock = clock
        self._cancel_deadline = cancel_deadline
        self._release = release

    def finish(self, row: Row, terminal: FrameView, kind: str | None = None) -> None:
        """End a row with a terminal for its requester."""
        if kind is None:
            kind = "end" if terminal.type is FrameType.END else "err" if row.cancel is None else "cancelled"
        self._alarms.drop(row.alarm)
        self._rows.take(row, kind, self._clock())
        if row.slot is not None:
            self._release(row.slot)
        self._out.put(row.answer.sink, terminal)

    def fail(self, row: Row, why: Failure) -> None:
        """End a request that broke a rule: ERR to its requester now, CANCEL to its handler.

        The row stays for the handler's terminal, with nobody at its other end.
        """
        error = self._err(row, why)
        requester = row.answer.sink
        self._leave(row)
        self._out.put(requester, error)
        self.cancel(row, CancelReason(*why[:3]))

    def _err(self, row: Row, why: Failure) -> FrameView:
        return view_of(err_frame(row.rid, why, xid=row.xid, seq=row.answer.last_seq + 1))

    def _leave(self, row: Row) -> None:
        """The requester has gone or has its terminal: what it still sends is a straggler."""
        row.answer.sink = NOBODY
        self._rows.released.add(row.rid)

    def cancel(self, row: Row, reason: CancelReason, *, force_kill: bool = False) -> None:
        """Cancel a request and the calls its handler has made, all for the same reason."""
        reason = CancelReason(reason.code[:_LONGEST_TEXT], reason.attribution, reason.message[:_LONGEST_TEXT])
        waiting = [row]
        while waiting:
            row = waiting.pop()
            waiting.extend(row.children.values())
            if row.cancel is None:
                self._begin_cancel(row, reason, force_kill)
            elif force_kill and not row.force_killed:
                self._send_cancel(row, reason, force_kill)

    def _begin_cancel(self, row: Row, reason: CancelReason, force_kill: bool) -> None:
        terminal = row.answer.discard_held()
        if terminal is not None:
            self.finish(row, terminal)
            return
        body_is_open = row.body.discard_held() is not None or row.state is RequestState.BODY
        row.state, row.cancel = RequestState.CANCELLED, reason
        self._send_cancel(row, reason, force_kill)
        if body_is_open:
            self._abort_body(row, reason)
        self.refill(row, least=1)
        row.alarm = self._alarms.after(self._cancel_deadline, partial(self._out.turn, partial(self._expire, row)))

    def _send_cancel(self, row: Row, reason: CancelReason, force_kill: bool) -> None:
        row.force_killed = force_kill
        frame = cancel_frame(row.rid, reason, xid=row.xid, force_kill=force_kill)
        self._out.put(row.body.sink, view_of(frame))

    def _abort_body(self, row: Row, reason: CancelReason) -> None:
        """End an unfinished body with ERR: the public host knows no CANCEL, and its handler would wait for input."""
        error = err_frame(row.rid, reason.failure(), xid=row.xid, seq=row.body.last_seq + 1)
        self._out.put(row.body.sink, view_of(error))

    def refill(self, row: Row, least: int) -> None:
        """Grant a cancelled request's handler what it has been waiting for."""
        for stream_id, credit in row.answer.refill(least):
            grant = credit_frame(row.rid, stream_id, credit, RESPONSE, xid=row.xid)
            self._out.put(row.body.sink, view_of(grant))

    def _expire(self, row: Row) -> None:
        """No terminal came in time: the switch makes it, and what comes later is a straggler."""
        assert row.cancel is not None
        code, attribution, message = row.cancel
        message += f" (its handler has not ended within {self._cancel_deadline:g} s)"
        self.finish(row, self._err(row, Failure(code, attribution, message)))

    def master_died(self, master: Master, reason: str) -> None:
        """Settle everything a dead link held: calls to it end, calls from it are cancelled where they run."""
        went = f"host {master.name} went away ({reason})"
        died = failure("MASTER_DIED", f"{went}; the request can be sent again")
        in_part = failure("MASTER_DIED", f"{went}; the request has been answered in part: sent again, it begins anew")
        gone = failure("ABORTED_COLLATERAL", f"host {master.name}, which made this call, went away")
        for row in filter(self._rows.is_live, self._rows.live()):
            if row.answer.sink is master:
                self._leave(row)
            if row.body.sink is master:
                begun = any(stream.frames for stream in row.answer.streams.values())
                self.finish(row, self._err(row, in_part if begun else died), "master_died")
            elif row.answer.sink is NOBODY and row.cancel is None:
                self.cancel(row, CancelReason(*gone[:3]))

    def abort_all(self) -> None:
        """Settle everything: the switch is going down."""
        for row in filter(self._rows.is_live, self._rows.live()):
            self.fail(row, failure("ABORTED", CLOSING))
