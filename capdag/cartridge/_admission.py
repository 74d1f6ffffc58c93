"""How many requests run at once: a pool for every cap, shared pools, and `all` (protocol-spec/wire.md, Pools).

The identity check takes no place: a cartridge whose only slot is busy is still who it is.
Not locked: the runtime calls it under its own lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from capdag.errors import RemoteProtocolError
from capdag.wire import ALL_POOL, IDENTITY_CAP, PoolState

if TYPE_CHECKING:
    from ._job import Job


class Pool:
    """One pool's counts. A capacity of 0 means no bound."""

    __slots__ = ("active", "caps", "configured", "declared")

    def __init__(self, declared: int, caps: tuple[str, ...] | None = None) -> None:
        self.declared = self.configured = declared
        self.active = 0
        self.caps = caps

    @property
    def has_room(self) -> bool:
        """True if one more request may run."""
        return not self.configured or self.active < self.configured


class Admission:
    """Admits a request when every pool of its cap has room, in order of arrival among those that could go."""

    def __init__(self, caps: Sequence[str], shared: Mapping[str, Sequence[str]], capacities: Mapping[str, int]) -> None:
        """`caps` are all served caps, `shared` the shared pools with theirs, `capacities` by pool name."""
        bounded = tuple(cap for cap in caps if cap != IDENTITY_CAP)
        self._pools = {cap: Pool(capacities.get(cap, 0)) for cap in caps}
        for name, members in shared.items():
            self._pools[name] = Pool(capacities.get(name, 0), tuple(members))
        self._pools[ALL_POOL] = Pool(capacities.get(ALL_POOL, 0), bounded)
        self._chains = {
            cap: [self._pools[name] for name in (cap, *sorted(n for n in shared if cap in shared[n]), ALL_POOL)]
            for cap in bounded
        }
        self._chains[IDENTITY_CAP] = []
        self._waiting: dict[Job, None] = {}

    def enter(self, job: Job) -> int:
        """Admit a request and return 0, or queue it and return its position on its own cap's line."""
        if self._admit(job):
            return 0
        self._waiting[job] = None
        return sum(other.cap.text == job.cap.text for other in self._waiting)

    def withdraw(self, job: Job) -> bool:
        """Take a request out of line. False if it does not wait."""
        if job not in self._waiting:
            return False
        del self._waiting[job]
        return True

    def release(self, job: Job) -> list[Job]:
        """Give the places of a request back; returns the requests that are thereby admitted."""
        for pool in self._chains[job.cap.text]:
            pool.active -= 1
        return self._admit_waiting()

    def configure(self, data: object) -> list[Job]:
        """Apply `desired_capacities` of a heartbeat: bytes of JSON, pool name to capacity; returns the requests that
        are thereby admitted. Raises RemoteProtocolError, and changes nothing, if any of it is wrong."""
        desired = _read_desired(data)
        for name in desired:
            if name not in self._pools:
                raise RemoteProtocolError(f"desired capacities refused: unknown pool {name!r}")
        for name, capacity in desired.items():
            self._pools[name].configured = capacity
        return self._admit_waiting()

    def states(self) -> dict[str, PoolState]:
        """Return the counts of every pool. A queued request counts on its own pool and on each that has no room."""
        queued = dict.fromkeys(self._pools.values(), 0)
        for job in self._waiting:
            own, *others = self._chains[job.cap.text]
            queued[own] += 1
            for pool in others:
                queued[pool] += not pool.has_room
        return {
            name: PoolState(pool.declared, pool.configured, pool.active, queued[pool], caps=pool.caps)
            for name, pool in self._pools.items()
        }

    def _admit(self, job: Job) -> bool:
        chain = self._chains[job.cap.text]
        if not all(pool.has_room for pool in chain):
            return False
        for pool in chain:
            pool.active += 1
        return True

    def _admit_waiting(self) -> list[Job]:
        admitted = [job for job in self._waiting if self._admit(job)]
        for job in admitted:
            del self._waiting[job]
        return admitted


def _read_desired(data: object) -> dict[str, int]:
    try:
        desired = json.loads(data) if isinstance(data, bytes) else None
    except (ValueError, RecursionError):
        desired = None
    if not isinstance(desired, dict) or not all(_is_capacity(value) for value in desired.values()):
        raise RemoteProtocolError(
            "desired capacities refused: they must be bytes holding a JSON object, pool name to integer of at least 0"
        )
    return desired


def _is_capacity(value: object) -> bool:
    return type(value) is int and value >= 0
