"""Masters: the hosts that are attached to the switch, and what they offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import trio

from capdag.transport import ByteLink, Link
from capdag.urn import CapTable, CapUrn, Registration
from capdag.wire import DEFAULT_LIMITS, FrameView, IdentityCheck, MessageId
from capdag.wire.link_life import Direction, LinkSide, LinkState
from capdag.wire.notify import InstallIdentity, InstallRecord, Notice, Offer

from ._alarms import Alarm
from ._places import Install, Line

CHOKED = 1 << 20
"""Bytes queued for a host past which LOGs, the only frames to it that nothing else bounds, are lost."""

DEAD_SLOTS = 64
"""Slots of dead hosts that are remembered, for who looks for the reason."""


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
    """A cap that some host serves. `facts` is the cap's manifest object; `host` the name the host attached by."""

    urn: CapUrn
    text: str
    facts: Mapping[str, Any]
    install_id: str
    host: str


class _Away(NamedTuple):
    """A cap that no host offers, for a moment as it seems, and what the last one told of it."""

    registration: Registration[Line[Master]]
    capability: Capability


class Master:
    """One attached host, by its link. `lines` are the caps that it is routed to for, `offered` what it tells of them.

    `ended_at` is when its link has ended, by the clock of who keeps the masters.
    """

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.side = LinkSide(Direction.HOST_TO_SWITCH)
        self.proved = self.ended = False
        self.ended_at = 0.0
        self.reason = ""
        self.limits = DEFAULT_LIMITS
        self.max_frame = DEFAULT_LIMITS.max_frame
        self.notice: Notice | None = None
        self.lines: dict[CapUrn, Line[Master]] = {}
        self.offered: dict[CapUrn, Capability] = {}
        self.installs: dict[InstallIdentity, Install] = {}
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

    @property
    def is_choked(self) -> bool:
        """True while so much waits for the host to read that a LOG for it is lost."""
        return isinstance(self.link, ByteLink) and self.link.bytes_queued > CHOKED

    def emit(self, batch: Sequence[FrameView]) -> None:
        """Send on the link."""
        self.link.send(batch)

    def installs_by_cap(self, records: Iterable[InstallRecord]) -> dict[CapUrn, Install]:
        """Bring the installs to the records of a notice; return the one that serves each cap.

        Of several the first: the host takes that one too. An install that has gone is kept while it has requests: it
        may come back.
        """
        serving: dict[CapUrn, Install] = {}
        told: set[InstallIdentity] = set()
        for record in records:
            told.add(record.identity)
            install = self.installs.get(record.identity)
            if install is None:
                install = self.installs[record.identity] = Install(self.name, record.identity.id)
            install.update(record.running, record.pools)
            for offer in record.caps:
                serving.setdefault(offer.urn, install)
        for identity in self.installs.keys() - told:
            if self.installs[identity].is_idle:
                del self.installs[identity]
        return serving

    def __repr__(self) -> str:
        return f"<Master {self.name} {self.state}>"


class Masters:
    """The slots of hosts by name, claimants of slots that are held, and the table of the caps that ready ones offer.

    A claimant is a link by the name of a host whose link lives: one of the two is stale. The slot goes to it when it
    has proved its identity, or when the holder's link ends.
    What a host offered that has gone is `away` for `grace` (seconds of `clock`): the host may be about to come back.
    """

    def __init__(self, grace: float, clock: Callable[[], float]) -> None:
        self._grace = grace
        self._clock = clock
        self._slots: dict[str, Master] = {}
        self._claimants: list[Master] = []
        self._table: CapTable[Line[Master]] = CapTable()
        self._lines: dict[CapUrn, Registration[Line[Master]]] = {}
        self._away_table: CapTable[Line[Master]] = CapTable()
        self._away: dict[CapUrn, _Away] = {}
        self._changes = trio.lowlevel.ParkingLot()

    def attach(self, link: Link, name: str) -> Master:
        """Give a slot, or have the host wait for the one that its name has."""
        master = Master(link, name)
        holder = self._slots.get(name)
        if holder is None or holder.ended:
            self._slots[name] = master
        else:
            self._claimants.append(master)
        return master

    def take_slot(self, master: Master) -> Master | None:
        """Give a host that has proved its identity the slot of its name. Returns the host that held it, if it lives."""
        holder = self._slots.get(master.name)
        if holder is master:
            return None
        self._claimants.remove(master)
        self._slots[master.name] = master
        return holder if holder is not None and not holder.ended else None

    def leave(self, master: Master) -> None:
        """A host's link has ended: the newest claimant gets its slot; else the slot shows why, until it is taken, or
        for the grace."""
        master.ended_at = self._clock()
        if master in self._claimants:
            self._claimants.remove(master)
            return
        if self._slots.get(master.name) is not master:
            return
        heir = next((claimant for claimant in reversed(self._claimants) if claimant.name == master.name), None)
        if heir is not None:
            self._claimants.remove(heir)
            self._slots[master.name] = heir
            return
        self._slots[master.name] = self._slots.pop(master.name)
        dead = [name for name, one in self._slots.items() if one.ended]
        for name in dead[:-DEAD_SLOTS]:
            del self._slots[name]

    def _forget_dead(self) -> None:
        late = self._clock() - self._grace
        for name in [name for name, one in self._slots.items() if one.ended and one.ended_at < late]:
            del self._slots[name]

    def forget(self, master: Master) -> None:
        """Give up the slot of a host that has left for good. What it offered is not away: it is gone."""
        for urn in [urn for urn, away in self._away.items() if away.capability.host == master.name]:
            self._forget_away(urn)
        if self._slots.get(master.name) is master:
            del self._slots[master.name]

    def find(self, name: str) -> Master | None:
        """Return who has the slot of a name."""
        return self._slots.get(name)

    def all(self) -> list[Master]:
        """Return every slot's master, in the order of their coming; those that have died lately too."""
        self._forget_dead()
        return list(self._slots.values())

    def living(self) -> list[Master]:
        """Return every master whose link lives, with a slot or without."""
        return [master for master in (*self._slots.values(), *self._claimants) if not master.ended]

    def offer(self, master: Master) -> list[Line[Master]]:
        """Make the table show just what a ready master's notice offers. Returns the lines of its caps.

        Caps that stay keep their place in the ranking: a host repeats its notice every 2 s.
        """
        assert master.notice is not None
        serving = master.installs_by_cap(master.notice.records)
        for urn in master.lines.keys() - serving.keys():
            self._drop(master, urn, is_away=_may_come_back(master.offered[urn], master.notice))
        master.offered = {offer.urn: _capability(offer, master) for offer in reversed(master.notice.caps)}
        for urn, install in serving.items():
            if urn not in self._lines:
                self._forget_away(urn)
                self._lines[urn] = self._table.register(urn, Line(urn))
            line = master.lines[urn] = self._lines[urn].target
            line.put(master, install)
        self._changes.unpark_all()
        return list(master.lines.values())

    def withdraw(self, master: Master) -> None:
        """Take everything a master offers out of the table."""
        for urn in list(master.lines):
            self._drop(master, urn, is_away=True)

    def _drop(self, master: Master, urn: CapUrn, *, is_away: bool) -> None:
        line = master.lines.pop(urn)
        line.drop(master)
        if line.places:
            return
        self._table.retire(self._lines.pop(urn))
        line.lost_at = self._clock()
        if is_away:
            self._forget_late()
            self._away[urn] = _Away(self._away_table.register(urn, line), master.offered[urn])

    def _forget_late(self) -> None:
        """What has been away for longer than the grace is gone."""
        now = self._clock()
        for urn in [urn for urn, one in self._away.items() if now - one.registration.target.lost_at >= self._grace]:
            self._forget_away(urn)

    def _forget_away(self, urn: CapUrn) -> None:
        away = self._away.pop(urn, None)
        if away is not None:
            self._away_table.retire(away.registration)

    def lines(self) -> list[Line[Master]]:
        """Return the lines of all caps that are served now."""
        return [registration.target for registration in self._lines.values()]

    def best(self, cap: CapUrn, preferred: str | None = None) -> Line[Master] | None:
        """Return the line of the cap that serves `cap` best.

        `preferred` names what is to be chosen if it may serve: a cap, a host, or an installed cartridge by its id.
        """
        if preferred is not None and not preferred.startswith("cap:"):
            for line in self._table.ranking(cap):
                if any(preferred in place.install.names for place in line.places.values()):
                    return line
        return self._table.best_match(cap, preferred)

    def best_away(self, cap: CapUrn, preferred: str | None = None) -> Line[Master] | None:
        """Return the line in which to wait for the host that served `cap` best, None if no such host is away."""
        self._forget_late()
        return self._away_table.best_match(cap, preferred)

    def away(self) -> tuple[Capability, ...]:
        """Return what is offered no more and is waited for."""
        self._forget_late()
        return tuple(away.capability for away in self._away.values())

    async def wait_for(self, cap: CapUrn) -> None:
        """Wait until some master serves `cap`."""
        while self.best(cap) is None:
            await self._changes.park()

    def capabilities(self) -> tuple[Capability, ...]:
        """Return what ready masters offer, in the order of their notices. What an install names twice is told once."""
        told: dict[tuple[str, str, CapUrn], Capability] = {}
        for master in self._slots.values():
            if master.state is MasterState.READY and master.notice is not None:
                for offer in master.notice.caps:
                    capability = _capability(offer, master)
                    told.setdefault((master.name, capability.install_id, offer.urn), capability)
        return tuple(told.values())


def _capability(offer: Offer, master: Master) -> Capability:
    return Capability(offer.urn, str(offer.urn), offer.facts, str(offer.install.get("id", "")), master.name)


def _may_come_back(capability: Capability, notice: Notice) -> bool:
    """Say whether a cap that a host offers no more is missing for a moment only.

    It is if the host offers nothing at all, as one does that closes, or if its cartridge is there and neither broken
    nor serving: it does not answer its heartbeat.
    """
    if not notice.records:
        return True
    mute = (one for one in notice.installs if "cap_groups" not in one and not one.get("attachment_error"))
    return any(str(one.get("id", "")) == capability.install_id for one in mute)
