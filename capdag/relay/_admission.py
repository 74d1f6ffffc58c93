"""Who may go now, and who is next (protocol-spec/switch.md, Admission).

A request takes one slot in every pool of its chain, all at once or none, and gives them back once. Requests that find
no room wait in the line of their cap. Of those that could go, callers take turns, and each caller's go in order.
No clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from capdag.errors import AttributionClass, CapdagError

from ._places import Line, M, Slot

R = TypeVar("R")


class QueueFullError(CapdagError):
    """The line of a cap has no room for another request that waits."""

    code = "QUEUE_FULL"
    attribution = AttributionClass.RESOURCE


class Ticket(Generic[M, R]):
    """A request that waits. `serial` is in the order of coming; `position` is the last one it was told."""

    __slots__ = ("caller", "line", "position", "preferred", "request", "serial", "since")

    def __init__(
        self, line: Line[M], caller: str, preferred: str | None, request: R, serial: int, since: float
    ) -> None:
        self.line = line
        self.caller = caller
        self.preferred = preferred
        self.request = request
        self.serial = serial
        self.since = since
        self.position = 0


class _Caller:
    """One caller's turns. `round` is the earliest in which its next request may go, `served` when its last one went."""

    __slots__ = ("active", "round", "served", "waiting")

    def __init__(self, first_round: int) -> None:
        self.round = first_round
        self.served = 0
        self.active = self.waiting = 0


class _Turn(NamedTuple):
    """When a ticket's turn is: the smaller one goes first.

    A caller has one turn a `round`, so its second ticket's is a round later than its first one's: `behind` counts those
    of its own before it. In a round go first those with the smallest `behind`, whose callers have come last into the
    rounds; then who was `served` longest ago, or never; then who came first. A new caller joins the next round, before
    those that have been served in this one: so nobody waits for more than one turn of each other caller that was there
    before, however many come later.
    """

    round: int
    behind: int
    served: int
    serial: int


class Admission(Generic[M, R]):
    """The slots in use, the requests that wait, and the turns of their callers.

    What has changed is looked at by `admit`: call it after `release`, `changed` and `withdraw`, before the next `take`.
    """

    def __init__(self, max_queued: int) -> None:
        self.waiting: dict[Line[M], dict[str, deque[Ticket[M, R]]]] = {}
        self._max_queued = max_queued
        self._callers: dict[str, _Caller] = {}
        self._idle: set[str] = set()
        self._due: dict[Line[M], None] = {}
        self._round = self._served = self._serials = 0

    def __len__(self) -> int:
        """Count the requests that wait."""
        return sum(map(self.count, self.waiting))

    def count(self, line: Line[M]) -> int:
        """Count the requests that wait in one line."""
        return sum(map(len, self.waiting.get(line, {}).values()))

    # Slots

    def take(self, line: Line[M], caller: str, preferred: str | None = None) -> Slot[M] | None:
        """Take a slot for a new request, or return None: then it has to wait."""
        found = line.room(preferred)
        if found is None:
            return None
        self._note_served(caller)
        return Slot(line, *found, caller)

    def _note_served(self, name: str) -> None:
        caller = self._caller(name)
        self._served += 1
        if caller.round > self._round:
            self._round = caller.round
            self._forget_idle()
        caller.round = self._round + 1
        caller.served = self._served
        caller.active += 1

    def _caller(self, name: str) -> _Caller:
        caller = self._callers.get(name)
        if caller is None:
            caller = self._callers[name] = _Caller(self._round + 1)
        self._idle.discard(name)
        return caller

    def release(self, slot: Slot[M]) -> None:
        """Give a slot back, once."""
        slot.give_back()
        self._callers[slot.caller].active -= 1
        self._forget(slot.caller)
        if self.waiting:
            for line in slot.place.install.lines:
                self.changed(line)

    def changed(self, line: Line[M]) -> None:
        """Note that there may be room for a line: a slot was given back, a host has come, its pools have grown."""
        if line in self.waiting:
            self._due[line] = None

    def _forget(self, name: str) -> None:
        """A caller is remembered while it has anything here, and to the end of the round in which it had its turn if
        others wait: else who asks again and again, one request at a time, would be a new one each time."""
        caller = self._callers[name]
        if not caller.active and not caller.waiting:
            self._idle.add(name)
        if not self.waiting:
            self._forget_idle(everybody=True)

    def _forget_idle(self, *, everybody: bool = False) -> None:
        for name in [name for name in self._idle if everybody or self._callers[name].round <= self._round]:
            self._idle.remove(name)
            del self._callers[name]

    # Lines

    def wait(self, line: Line[M], caller: str, preferred: str | None, request: R, now: float) -> Ticket[M, R]:
        """Put a request at the end of its caller's in the line. Ask `displaced` before."""
        self._serials += 1
        ticket = Ticket(line, caller, preferred, request, self._serials, now)
        self._caller(caller).waiting += 1
        self.waiting.setdefault(line, {}).setdefault(caller, deque()).append(ticket)
        return ticket

    def displaced(self, line: Line[M], caller: str) -> Ticket[M, R] | None:
        """Return None if one more may wait in the line, or the request that has to leave it for that.

        A full line gives up the newest request of the caller that has the most, for one that has two fewer at least: no
        caller can shut the others out. Raises QueueFullError.
        """
        if self.count(line) < self._max_queued:
            return None
        callers = self.waiting.get(line, {})
        longest = max(callers.values(), key=len, default=deque[Ticket[M, R]]())
        if len(longest) < len(callers.get(caller, ())) + 2:
            text = (
                f"{self._max_queued} requests or more wait for {line.text}, the most that may (max_queued): try later"
            )
            raise QueueFullError(text)
        return longest[-1]

    def withdraw(self, ticket: Ticket[M, R]) -> None:
        """Take a request out of its line, whose others move up."""
        self._step_out(ticket)
        self._callers[ticket.caller].waiting -= 1
        self._forget(ticket.caller)

    def _step_out(self, ticket: Ticket[M, R]) -> None:
        callers = self.waiting[ticket.line]
        callers[ticket.caller].remove(ticket)
        if not callers[ticket.caller]:
            del callers[ticket.caller]
        if not callers:
            del self.waiting[ticket.line]
            self._due.pop(ticket.line, None)

    def move(self, ticket: Ticket[M, R], line: Line[M]) -> None:
        """Let a request wait in another line, where it stands as if it had been there from the beginning."""
        self._step_out(ticket)
        ticket.line = line
        callers = self.waiting.setdefault(line, {})
        own = [*callers.get(ticket.caller, ()), ticket]
        callers[ticket.caller] = deque(sorted(own, key=lambda one: one.serial))
        self.changed(line)

    def admit(self) -> Iterator[tuple[Ticket[M, R], Slot[M]]]:
        """Yield the requests that may go now, out of their lines, with their slots."""
        while self._due:
            ready = [line for line in self._due if line.room()]
            if not ready:
                self._due.clear()
                return
            heads = (tickets[0] for line in ready for tickets in self.waiting[line].values())
            ticket = min(heads, key=self._turn)
            slot = self.take(ticket.line, ticket.caller, ticket.preferred)
            assert slot is not None
            self.withdraw(ticket)
            yield ticket, slot

    def _turn(self, ticket: Ticket[M, R], behind: int = 0) -> _Turn:
        caller = self._callers[ticket.caller]
        return _Turn(caller.round + behind, behind, caller.served, ticket.serial)

    def position(self, ticket: Ticket[M, R]) -> int:
        """Return the place of a request in the order of its line, from 1, without the whole order."""
        callers = self.waiting[ticket.line]
        mine = self._turn(ticket, callers[ticket.caller].index(ticket))
        before = 0
        for name, tickets in callers.items():
            # A caller's requests go in rounds that follow each other: all up to the one before mine are ahead.
            ahead = max(0, min(mine.round - self._callers[name].round, len(tickets)))
            before += ahead + (ahead < len(tickets) and self._turn(tickets[ahead], ahead) < mine)
        return before + 1

    def order(self, line: Line[M]) -> list[Ticket[M, R]]:
        """Return the requests of a line in the order in which they will go, if nothing else comes."""
        turns = [
            (self._turn(ticket, behind), ticket)
            for tickets in self.waiting.get(line, {}).values()
            for behind, ticket in enumerate(tickets)
        ]
        turns.sort(key=lambda turn: turn[0])
        return [ticket for _, ticket in turns]
