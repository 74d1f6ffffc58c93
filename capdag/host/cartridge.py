"""A cartridge as the host knows it: state, caps, what it serves, what it called (protocol-spec/host.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from capdag.urn import CapUrn
from capdag.wire import IDENTITY_CAP, Failure, FrameView, Limits, MessageId, PoolState
from capdag.wire.blocks import Parcel
from capdag.wire.manifest import Manifest

from .debt import Backlog
from .lifecycle import Event, State, move
from .rows import IncomingRow, OutgoingRow, RowKey
from .settings import CartridgeRecord, HostSettings
from .told import Told

if TYPE_CHECKING:
    from .health import Heartbeat

IDENTITY = CapUrn.parse(IDENTITY_CAP)


class Port(Protocol):
    """What stands behind a cartridge that takes frames: its process, or the host's own identity echo."""

    @property
    def bytes_queued(self) -> int:
        """Bytes that wait to be taken."""

    def send(self, batch: Sequence[Parcel]) -> None:
        """Queue frames without awaiting."""

    def kill(self, failure: Failure) -> None:
        """End it at once: `failure` is what its requests end with that have no reason of their own.

        The first call counts. What it has sent before may still come.
        """

    def stop(self) -> None:
        """End it in order. It holds nothing any more."""

    def wake(self) -> None:
        """Have its deadlines looked at again."""


class Cartridge:
    """One record and everything that is true of it now.

    `sha256` names the install: its id and command. `groups` and `caps` are what it offers, known or from its manifest.

    `rows` are the requests it serves or is to serve, `calls` those it made. `waiting` keeps, in order, what came for
    a process that is not ready. `down` collects what one routing turn sends it. `muted`: what it says no longer counts.
    `owed`: bytes, of what the host owes, that are its share (see `Debt`).
    `cancelling` counts the rows that are cancelled and have not ended, `crashes` the processes in a row that died of
    their own and had answered nothing. `resting`: it was stopped for having nothing to do. `has_run`: it was started
    before. `restarts` counts the starts after any other end. `desired` are the pool sizes asked of it, `desired_due`
    while the next probe is to carry them. `heard`: something came since the last probe. `attached`: it runs already,
    and is gone for good with its link. `retired_at`: since when it is not wanted any more. `told`: what the log has
    said of its ways, which is said once.
    """

    def __init__(
        self, record: CartridgeRecord, settings: HostSettings, *, serves_identity: bool = False, attached: bool = False
    ) -> None:
        self.record = record
        self.id = record.id
        self.attached = attached
        self.retired_at: float | None = None
        self.sha256 = hashlib.sha256(json.dumps([record.id, *record.command]).encode()).hexdigest()
        self.max_streams = settings.max_streams
        self.state = State.REGISTERED
        self.port: Port | None = None
        self.limits: Limits = settings.limits
        self.manifest: Manifest | None = None
        self.groups: list[Mapping[str, Any]] = []
        self.caps: list[CapUrn] = []
        self._serves_identity = serves_identity
        self._take_groups([{"name": record.id, "caps": list(record.caps)}])
        self.pools: Mapping[str, PoolState] = {}
        self.reported: Mapping[str, int] = {}
        self.desired: Mapping[str, int] = dict(record.pools)
        self.desired_due = False
        self.beat_at_unix: float | None = None
        self.heartbeat: Heartbeat | None = None
        self.heard = False
        self.owes_beat = False
        self.told = Told()
        self.rows: dict[RowKey, IncomingRow] = {}
        self.calls: dict[MessageId, OutgoingRow] = {}
        self.waiting: list[tuple[IncomingRow, FrameView]] = []
        self.down: list[Parcel] = []
        self.backlog = Backlog(lambda: self.bytes_queued)
        self.muted = False
        self.cancelling = 0
        self.owed = 0
        self.pid: int | None = None
        self.has_run = self.resting = False
        self.restarts = 0
        self.failed_starts = 0
        self.crashes = 0
        self.not_before = 0.0
        self.idle_since = 0.0
        self.trouble: Failure | None = None
        self.trouble_at_unix = 0.0
        self.last_exit: str | None = None

    def move(self, event: Event) -> None:
        """Take one step of the life table."""
        self.state = move(self.state, event)

    def begin(self) -> None:
        """Note that a process of it is started."""
        self.move(Event.START)
        if self.has_run and not self.resting:
            self.restarts += 1
        self.has_run, self.resting = True, False

    def adopt(self, manifest: Manifest, pools: Mapping[str, PoolState]) -> None:
        """Take what the process says it is in place of what was known before."""
        self.manifest = manifest
        self.pools = pools
        self._take_groups(manifest.groups)

    def _take_groups(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Keep the groups as they are advertised: without the identity, which the host offers once for all.

        Of a cap that is there twice the first counts: a caller would not know which of the two is meant.
        """
        self.groups, caps = [], {} if self._serves_identity else {IDENTITY: None}
        for group in groups:
            offered = []
            for cap in group["caps"]:
                urn = CapUrn.parse(cap["urn"])
                if urn not in caps:
                    caps[urn] = None
                    offered.append(cap)
            if offered:
                self.groups.append({**group, "caps": offered})
        self.caps = [urn for urn in caps if self._serves_identity or urn != IDENTITY]

    def rest(self) -> None:
        """Note that nothing runs any more: the pools keep their sizes and hold nothing."""
        self.pools = {name: state._replace(active=0, queued=0) for name, state in self.pools.items()}
        self.reported = {}

    @property
    def bytes_queued(self) -> int:
        """Bytes that wait for its process to read."""
        return self.port.bytes_queued if self.port is not None else 0

    @property
    def is_leaving(self) -> bool:
        """True if its process is the last: it is not started again."""
        return self.attached or self.retired_at is not None

    @property
    def is_idle(self) -> bool:
        """True if it serves nothing and has called nothing."""
        return not self.rows and not self.calls

    def row_of(self, rid: object) -> IncomingRow | None:
        """Return the request it serves under `rid`, or None."""
        return next((row for row in self.rows.values() if row.rid == rid), None)

    def wake(self) -> None:
        """Have the deadlines of its process looked at again."""
        if self.port is not None:
            self.port.wake()

    def forgive(self) -> None:
        """Forget failed starts and crashes, and the pause they led to."""
        self.failed_starts = self.crashes = 0
        self.not_before, self.trouble = 0.0, None
        self.told = Told()

    def _told_state(self) -> str:
        if self.retired_at is not None:
            return "retiring"
        return "idle" if self.resting and self.state is State.DEAD else self.state.value

    def _told_trouble(self, now: float) -> str | None:
        if self.trouble is None:
            return None
        pause = self.not_before - now
        return f"paused for {pause:.1f} s: {self.trouble.message}" if pause > 0 else self.trouble.message

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return what an operator sees, as JSON values; times in seconds."""
        return {
            "id": self.id,
            "state": self._told_state(),
            "pid": self.pid,
            "active": sum(1 for row in self.rows.values() if not row.queued),
            "waiting": sum(1 for row in self.rows.values() if row.queued),
            "calls": len(self.calls),
            "restarts": self.restarts,
            "failed_starts": self.failed_starts,
            "crashes": self.crashes,
            "pause": max(0.0, self.not_before - now),
            "last_exit": self.last_exit,
            "trouble": self._told_trouble(now),
            "trouble_stderr": (self.trouble.detail or {}).get("stderr") if self.trouble is not None else None,
            "caps": list(map(str, self.caps)),
            "pools": {name: state.as_json() for name, state in self.pools.items()},
            "desired_capacities": dict(self.desired),
        }
