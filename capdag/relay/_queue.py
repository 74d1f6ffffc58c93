"""Requests of callers on their way to a host: at once where there is room, else through a line.

The switch is the one place of admission (protocol-spec/switch.md, Admission). Who may go is judged by `Admission`; here
are the clock, the alarms, and what callers hear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from capdag.errors import RequestFailedError
from capdag.urn import CapUrn
from capdag.wire import CancelReason, Failure, LogRecord, MessageId, err_frame, log_frame, view_of

from ._admission import Admission, QueueFullError, Ticket
from ._alarms import Alarm, Alarms
from ._endings import failure
from ._flow import Sink
from ._masters import Master, Masters
from ._outgoing import Outgoing
from ._places import Line, Slot
from ._settings import SwitchSettings

SHOWN = 64
"""Requests of a line that the snapshot shows."""


class Caller(Sink, Protocol):
    """What waits: a request that has not gone out."""

    rid: MessageId
    xid: int
    wanted: CapUrn
    ticket: Waiting | None

    def go(self, slot: Slot[Master]) -> None:
        """Send the REQ to the slot's master. Raises RequestFailedError."""


Waiting = Ticket[Master, Caller]


class Queue:
    """The requests that wait, by the line of their cap. `settle` comes at the end of every turn."""

    def __init__(
        self, settings: SwitchSettings, masters: Masters, admission: Admission[Master, Caller], out: Outgoing,
        alarms: Alarms, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._masters = masters
        self._admission = admission
        self._out = out
        self._alarms = alarms
        self._clock = clock
        self._deadlines: dict[Waiting, Alarm] = {}
        self._outages: dict[Line[Master], Alarm] = {}
        self._tellings: dict[Line[Master], Alarm] = {}
        self._hosts_changed = False
        self._counts: Counter[str] = Counter()

    def enter(self, request: Caller, line: Line[Master], caller: str, preferred: str | None) -> None:
        """Send a request, or have it wait: then it has a ticket.

        Raises RequestFailedError: QUEUE_FULL, and whatever speaks against sending it.
        """
        self.settle()
        slot = self._admission.take(line, caller, preferred)
        if slot is not None:
            self._send(request, slot)
            return
        try:
            loser = self._admission.displaced(line, caller)
        except QueueFullError as error:
            self._counts["refused"] += 1
            raise self._full(line, str(error)).error() from None
        if loser is not None:
            message = f"{self._settings.max_queued} requests wait for {line.text} (max_queued), too many of this caller"
            self._fail(loser, self._full(line, f"{message}: try later"), "refused")
        self._wait(request, line, caller, preferred)

    def _full(self, line: Line[Master], message: str) -> Failure:
        detail = {"param": "max_queued", "limit": self._settings.max_queued, "seen": self._admission.count(line)}
        return failure("QUEUE_FULL", message)._replace(detail=detail)

    def _send(self, request: Caller, slot: Slot[Master]) -> None:
        try:
            request.go(slot)
        except BaseException:
            self._admission.release(slot)
            raise

    def _wait(self, request: Caller, line: Line[Master], caller: str, preferred: str | None) -> None:
        ticket = request.ticket = self._admission.wait(line, caller, preferred, request, self._clock())
        self._counts["queued"] += 1
        timeout = self._settings.queue_timeout
        text = f"the request has waited for {timeout:g} s and found no room (queue_timeout)"
        detail = {"param": "queue_timeout", "limit": timeout, "retryable": True}
        why = failure("DEADLINE_EXCEEDED", text)._replace(detail=detail)
        self._deadlines[ticket] = self._alarms.after(timeout, self._in_turn(self._fail, ticket, why, "expired"))
        self._tell(ticket, self._admission.position(ticket))
        self._tell_later(line)
        if not line.places:
            self._hold(line)

    def _in_turn(self, call: Callable[..., None], *arguments: object) -> Callable[[], None]:
        return partial(self._out.turn, partial(call, *arguments))

    # Leaving

    def leave(self, ticket: Waiting, reason: CancelReason) -> None:
        """A caller gives up: no cartridge ever hears of the request."""
        why = reason.failure()
        self._fail(ticket, why._replace(message=f"{why.message} (while queued)"), "abandoned")

    def abort_all(self, why: Failure) -> None:
        """End everything that waits."""
        for line in list(self._admission.waiting):
            self._fail_line(line, why, "aborted")

    def _fail_line(self, line: Line[Master], why: Failure, kind: str) -> None:
        for ticket in self._admission.order(line):
            self._fail(ticket, why, kind)

    def _fail(self, ticket: Waiting, why: Failure, kind: str) -> None:
        self._admission.withdraw(ticket)
        self._forget(ticket)
        self._counts[kind] += 1
        request = ticket.request
        self._out.put(request, view_of(err_frame(request.rid, why, xid=request.xid)))

    def _forget(self, ticket: Waiting) -> None:
        """A ticket has left its line: nothing is due for it any more, nor for the line if that is empty."""
        ticket.request.ticket = None
        self._alarms.drop(self._deadlines.pop(ticket))
        if ticket.line in self._admission.waiting:
            self._tell_later(ticket.line)
        else:
            self._forget_line(ticket.line)

    def _forget_line(self, line: Line[Master]) -> None:
        for due in (self._outages, self._tellings):
            self._alarms.drop(due.pop(line, None))

    # Going

    def hosts_changed(self, lines: Iterable[Line[Master]] = ()) -> None:
        """A host has come or gone, or has told of its installs: there may be room in `lines`."""
        self._hosts_changed = True
        for line in lines:
            self._admission.changed(line)

    def settle(self) -> None:
        """Send everything that may go now."""
        if self._hosts_changed:
            self._hosts_changed = False
            for line in list(self._admission.waiting):
                if not line.places:
                    self._bridge(line)
        for ticket, slot in self._admission.admit():
            self._forget(ticket)
            self._counts["dequeued"] += 1
            self._log(ticket.request, LogRecord("dequeued", "the request has left the queue"))
            try:
                self._send(ticket.request, slot)
            except RequestFailedError as error:
                why = Failure(error.code, error.attribution, error.message, error.detail)
                self._out.put(ticket.request, view_of(err_frame(ticket.request.rid, why, xid=ticket.request.xid)))

    def _bridge(self, line: Line[Master]) -> None:
        """Nobody offers the cap of a line: its requests go to the line of another that may serve, or are held."""
        for ticket in self._admission.order(line):
            other = self._masters.best(ticket.request.wanted, ticket.preferred)
            if other is not None:
                self._admission.move(ticket, other)
                self._tell_later(other)
        if line not in self._admission.waiting:
            self._forget_line(line)
        else:
            self._hold(line)

    def _hold(self, line: Line[Master]) -> None:
        """Have a line that nobody serves end when its outage has lasted too long, counted from its start."""
        if line not in self._outages:
            grace = self._settings.outage_grace
            why = failure("NO_HANDLER", f"no host has offered {line.text} for {grace:g} s (outage_grace): try later")
            expire = self._in_turn(self._fail_line, line, why, "expired")
            self._outages[line] = self._alarms.after(line.lost_at + grace - self._clock(), expire)

    # Telling

    def _tell_later(self, line: Line[Master]) -> None:
        if line not in self._tellings:
            tell = self._in_turn(self._tell_line, line)
            self._tellings[line] = self._alarms.after(self._settings.position_interval, tell)

    def _tell_line(self, line: Line[Master]) -> None:
        self._tellings.pop(line)
        for position, ticket in enumerate(self._admission.order(line), 1):
            self._tell(ticket, position)

    def _tell(self, ticket: Waiting, position: int) -> None:
        if position != ticket.position:
            ticket.position = position
            message = f"the request is queued at position {position} for {ticket.line.text}"
            self._log(ticket.request, LogRecord("queued", message, extra={"position": position}))

    def _log(self, request: Caller, record: LogRecord) -> None:
        self._out.put(request, view_of(log_frame(request.rid, record, xid=request.xid)))

    # What is told of it

    def __len__(self) -> int:
        return len(self._admission)

    def snapshot(self) -> dict[str, Any]:
        """Return the lines with their requests in order, and counts of all that have ever waited, by their fate."""
        now = self._clock()
        lines = {}
        for line in self._admission.waiting:
            order = self._admission.order(line)
            lines[line.text] = {
                "waiting": len(order),
                "longest_wait_ms": round(1000 * (now - min(ticket.since for ticket in order))),
                "hosts": [master.name for master in line.places],
                "outage": line in self._outages,
                "requests": [
                    {"xid": ticket.request.xid, "position": position, "wait_ms": round(1000 * (now - ticket.since))}
                    for position, ticket in enumerate(order[:SHOWN], 1)
                ],
            }
        return {"waiting": len(self), "lines": lines, "total": dict(self._counts)}
