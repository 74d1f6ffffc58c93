"""Masters: the hosts that are attached to the switch, and what they offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import trio

from capdag.errors import LocalProtocolError
from capdag.transport import Link
from capdag.urn import CapTable, CapUrn, Registration
from capdag.wire import DEFAULT_LIMITS, FrameView, IdentityCheck, MessageId
from capdag.wire.link_life import Direction, LinkSide, LinkState
from capdag.wire.notify import Notice

from ._alarms import Alarm


class MasterState(StrEnum):
    """Where a master stands. Only `ready` ones are routed to."""

    WAITING = "waiting"
    """Attached; its first RELAY_NOTIFY has not come."""
    IDLE = "idle"
    """It has offered no cap yet, so its identity has not been asked for."""
    CHECKING = "checking"
    READY = "ready"
    DEAD = "dead"


class Capability(NamedTuple):
    """A cap that some host serves now. `facts` is the cap's manifest object; `host` the name the host attached by."""

    urn: CapUrn
    text: str
    facts: Mapping[str, Any]
    install_id: str
    host: str


class Master:
    """One attached host. A new one takes the slot of a dead one of the same name."""

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.side = LinkSide(Direction.HOST_TO_SWITCH)
        self.ended = False
        self.reason = ""
        self.limits = DEFAULT_LIMITS
        self.max_frame = DEFAULT_LIMITS.max_frame
        self.notice: Notice | None = None
        self.registrations: dict[CapUrn, Registration[Master]] = {}
        self.check: IdentityCheck | None = None
        self.check_rid: MessageId | None = None
        self.alarm: Alarm | None = None

    @property
    def state(self) -> MasterState:
        """Where the master stands."""
        if self.ended:
            return MasterState.DEAD
        if self.side.state is LinkState.GREETED:
            return MasterState.IDLE if self.check is None else MasterState.CHECKING
        return MasterState.READY if self.side.state is LinkState.OPEN else MasterState.WAITING

    def emit(self, batch: Sequence[FrameView]) -> None:
        """Send on the link."""
        self.link.send(batch)

    def __repr__(self) -> str:
        return f"<Master {self.name} {self.state}>"


class Masters:
    """All masters by name, and the table of the caps that ready ones offer."""

    def __init__(self) -> None:
        self._slots: dict[str, Master] = {}
        self._table: CapTable[Master] = CapTable()
        self._changes = trio.lowlevel.ParkingLot()

    def attach(self, link: Link, name: str) -> Master:
        """Give a slot. Raises LocalProtocolError while a living master has the name."""
        holder = self._slots.get(name)
        if holder is not None and holder.state is not MasterState.DEAD:
            raise LocalProtocolError(f"a host named {name!r} is attached: give each host a name of its own")
        master = self._slots[name] = Master(link, name)
        return master

    def all(self) -> list[Master]:
        """Return every slot's master, dead ones too, in the order of their names' first coming."""
        return list(self._slots.values())

    def offer(self, master: Master) -> None:
        """Make the table show just what a ready master's notice offers.

        Caps that stay keep their place in the ranking: a host repeats its notice every 2 s.
        """
        assert master.notice is not None
        offered = dict.fromkeys(offer.urn for offer in master.notice.caps)
        held = master.registrations
        for urn in held.keys() - offered.keys():
            self._table.retire(held.pop(urn))
        for urn in offered:
            if urn not in held:
                held[urn] = self._table.register(urn, master)
        self._changes.unpark_all()

    def withdraw(self, master: Master) -> None:
        """Take everything a master offers out of the table."""
        self._table.retire_target(master)
        master.registrations.clear()

    def best(self, cap: CapUrn | str, preferred: str | None = None) -> Master | None:
        """Return the ready master that serves `cap` best."""
        return self._table.best_match(cap, preferred)

    async def wait_for(self, cap: CapUrn) -> None:
        """Wait until some master serves `cap`."""
        while self.best(cap) is None:
            await self._changes.park()

    def capabilities(self) -> tuple[Capability, ...]:
        """Return what ready masters offer, in the order of their notices."""
        return tuple(
            Capability(offer.urn, str(offer.urn), offer.facts, str(offer.install.get("id", "")), master.name)
            for master in self._slots.values()
            if master.state is MasterState.READY and master.notice is not None
            for offer in master.notice.caps
        )
