"""Where requests may go: the pools of installed cartridges, and the hosts that offer one cap.

No clock, no I/O (protocol-spec/switch.md, Admission).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from capdag.urn import CapUrn
from capdag.wire import ALL_POOL, IDENTITY_CAP, PoolState

M = TypeVar("M", bound=Hashable)


class Pool:
    """What one pool takes at once, and what this switch has in it."""

    __slots__ = ("active", "size")

    def __init__(self) -> None:
        self.active = 0
        self.size = inf


Chain = tuple[Pool, ...]
"""The pools in which a request needs room, all of them."""


class Install:
    """One installed cartridge of one host. A caller may ask for it by any of `names`; it has a place in `lines`, and
    holds `slots`."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)
        self.lines: dict[Line[Any], None] = {}
        self.slots: dict[Slot[Any], None] = {}
        self.running = False
        self.pools: dict[str, Pool] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def update(self, running: bool, pools: Mapping[str, PoolState]) -> None:
        """Take the sizes of a new notice. What is in the pools stays.

        A cartridge that does not run takes one request, which starts it: the others follow when it is known to run.
        A pool that is not told of has no bound.
        """
        self.running = running
        sizes = {name: state.effective or inf for name, state in pools.items()}
        if not running:
            sizes[ALL_POOL] = 1
        for name in [name for name, pool in self.pools.items() if name not in sizes and not pool.active]:
            del self.pools[name]
        for name in {*self.pools, *sizes}:
            self.pools.setdefault(name, Pool()).size = sizes.get(name, inf)
        self._members = {name: state.caps for name, state in sorted(pools.items()) if state.caps and name != ALL_POOL}

    def chain(self, cap: str) -> Chain:
        """Return the pools of a cap: its own, the shared ones that hold it in the order of their names, `all`.

        The identity check takes no place anywhere.
        """
        if cap == IDENTITY_CAP:
            return ()
        shared = [name for name, members in self._members.items() if cap in members and name != cap]
        return tuple(self.pools.setdefault(name, Pool()) for name in (cap, *shared, ALL_POOL))

    @property
    def is_idle(self) -> bool:
        """True if nothing is in its pools."""
        return not self.slots


class Place(NamedTuple):
    """An install of a host, for one cap."""

    install: Install
    chain: Chain

    @property
    def has_room(self) -> bool:
        """True if one more request may go there."""
        for pool in self.chain:  # noqa: SIM110 - asked for every request: a generator would cost as much again
            if pool.active >= pool.size:
                return False
        return True


class Slot(Generic[M]):
    """What a request holds while it runs: one of each pool of its chain."""

    __slots__ = ("caller", "line", "master", "place")

    def __init__(self, line: Line[M], master: M, place: Place, caller: str) -> None:
        self.line = line
        self.master = master
        self.place = place
        self.caller = caller
        place.install.slots[self] = None
        for pool in place.chain:
            pool.active += 1

    def move(self, place: Place) -> None:
        """Hold another chain of the same install: its cartridge has told of other pools."""
        for pool in self.place.chain:
            pool.active -= 1
        for pool in place.chain:
            pool.active += 1
        self.place = place

    def give_back(self) -> None:
        """Hold nothing any more. Once: a second time is a mistake of the code, and raises KeyError."""
        del self.place.install.slots[self]
        for pool in self.place.chain:
            pool.active -= 1


class Line(Generic[M]):
    """One cap, and the hosts that offer it in the order of their coming. Requests for it stand in one line.

    `lost_at` is when the last of them went, by the clock of who keeps the lines.
    """

    def __init__(self, cap: CapUrn) -> None:
        self.cap = cap
        self.text = str(cap)
        self.places: dict[M, Place] = {}
        self.lost_at = 0.0

    def put(self, master: M, install: Install) -> None:
        """Note that a host offers the cap, with the pools as they are now. It keeps its place in the order."""
        before = self.places.get(master)
        if before is not None and before.install is not install:
            del before.install.lines[self]
        place = self.places[master] = Place(install, install.chain(self.text))
        install.lines[self] = None
        for slot in install.slots:
            if slot.line.cap == self.cap and slot.place.chain != place.chain:
                slot.move(place)

    def drop(self, master: M) -> None:
        """Note that a host offers the cap no more."""
        del self.places.pop(master).install.lines[self]

    def room(self, preferred: str | None = None) -> tuple[M, Place] | None:
        """Return the first host with room, one that has the name `preferred` before the others."""
        found = None
        for place in self.places.items():
            if place[1].has_room:
                if preferred is None or preferred in place[1].install.names:
                    return place
                found = found or place
        return found
