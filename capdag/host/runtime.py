"""The host: cartridges on one side, the relay on the other (protocol-spec/host.md).

Everything that decides is in the sans-I/O modules beside this one; here are the tasks, the turns and the link.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import trio

from capdag.errors import AttributionClass, ConfigError, LocalProtocolError, RemoteProtocolError
from capdag.transport import ByteLink, Dispatcher, Link, LocalLink, Receiver
from capdag.transport.guardian import Guardian
from capdag.transport.links import RunReceiver
from capdag.wire import HOST_ABORT, IDENTITY_CAP, TERMINAL_TYPES, CancelReason, FrameView
from capdag.wire.blocks import Parcel
from capdag.wire.manifest import identity_cap

from .attached import Attached, AttachError
from .cartridge import Cartridge
from .cartridge_side import CartridgeSide
from .deaths import ProcessEnd
from .departures import Departures
from .endings import Endings
from .exchange import Exchange, log
from .handshake import Step
from .health import Health
from .identity import IdentityEcho
from .inventory import build_notify
from .lifecycle import STARTABLE, Event, State
from .process import Process
from .relay_side import RelaySide
from .roster import Roster
from .session import Session
from .settings import CartridgeRecord, HostSettings

_UNREAD = 64 * 1024
"""Bytes waiting for a relay from which on it is told nothing that it will be told again."""

_NOT_RUNNING = CancelReason("ABORTED", AttributionClass.ENVIRONMENT, "the host is not running")
_ALONE = CancelReason("MASTER_DIED", AttributionClass.ENVIRONMENT, "no relay has attached to this host yet")


class HostRuntime:
    """Starts cartridges at the first request for their caps and routes frames between them and the relay.

    `receiver` is what the relay's link delivers to. Without a `link` it waits for `attach_relay`. Raises ConfigError if
    two records have one id.
    """

    def __init__(
        self,
        records: Sequence[CartridgeRecord],
        link: Link | None,
        guardian: Guardian | None,
        settings: HostSettings | None = None,
    ) -> None:
        self.settings = settings if settings is not None else HostSettings()
        self._use(link)
        self._closed = False
        self._guardian = guardian
        self._turn = Dispatcher(self._flush).run
        self._nursery: trio.Nursery | None = None
        self._sessions: dict[Cartridge, Session] = {}
        self._x = Exchange(self.settings, trio.current_time, time.time, self._up_queued)
        self._x.closing = _NOT_RUNNING
        self._x.launch = self._launch
        self._roster = Roster(self._x, records)
        self._echo = _identity_cartridge(self.settings)
        self._echo.port = IdentityEcho(self._echoed, self.settings.limits.initial_credit)
        self._endings = Endings(self._x)
        self._health = Health(self._x, self._endings)
        self._relay_side = RelaySide(self._x, self._endings, self._sessions.keys(), self._echo)
        self._cartridge_side = CartridgeSide(self._x, self._endings, self._health)
        self._departures = Departures(self._x, self._endings, self._roster, self._relay_side.unusable)

    @property
    def receiver(self) -> RunReceiver:
        """What the relay's link delivers to."""
        return self._relay_end

    @property
    def relay_state(self) -> bytes:
        """The payload of the last RELAY_STATE, opaque to the host; empty before the first."""
        return self._x.relay_state

    def attach_relay(self, link: Link) -> Receiver:
        """Serve the relay at the far end of `link` in place of the former one; return what `link` is to deliver to.

        Processes live on. What the former relay asked for is cancelled, and nothing of it reaches the new one. Raises
        LocalProtocolError for a host that does not run or has been shut down.
        """
        self._check_runs("a relay")
        former = self._link
        self._relay_end.closed("another relay was attached")
        if former is not None:
            former.close()
        self._use(link)
        self._turn(self._reopen)
        return self._relay_end

    def _use(self, link: Link | None) -> None:
        self._link, self._relay_end = link, _RelayEnd(self)
        # A link inside the process queues nothing here.
        self._queue = link if isinstance(link, ByteLink) else None

    def _check_runs(self, what: str) -> None:
        if self._nursery is None or self._closed:
            raise LocalProtocolError(f"{what} can be attached only to a host that runs and is not shutting down")

    def _reopen(self) -> None:
        self._x.reset_backlog()
        self._open()

    # Turns

    def _flush(self) -> None:
        """Send on what a routing turn has produced."""
        x = self._x
        if x.touched:
            x.flush_down()
        if x.advertise and self._nursery is not None:
            x.advertise = False
            x.up.append(build_notify(x, [self._echo, *self._roster.current.values()]))
        if x.up:
            batch, x.up = x.up, []
            if self._queue is None:
                if self._link is not None:
                    self._link.send(batch)
                return
            before = self._queue.bytes_queued
            self._queue.send(batch)
            if before or self._queue.bytes_queued:
                x.backlog.sent(before)

    def _up_queued(self) -> int:
        """Bytes that wait for the relay to read."""
        return self._queue.bytes_queued if self._queue is not None else 0

    def relayed(self, batch: Sequence[Parcel]) -> None:
        """Take frames of the relay."""
        self._turn(self._route, batch)

    def _route(self, batch: Sequence[Parcel]) -> None:
        try:
            self._relay_side.route(batch)
        except RemoteProtocolError as error:
            log.error("the link to the relay is closed: %s", error)
            if self._link is not None:
                self._link.close()
            self._lose_relay(_relay_lost(str(error)))

    def relay_lost(self, reason: str) -> None:
        """The relay's link has ended: what it asked for is cancelled, what was asked of it fails."""
        self._turn(self._lose_relay, _relay_lost(reason))

    def _lose_relay(self, reason: CancelReason) -> None:
        """End what the relay had to do with. Processes are kept for `keep_warm`."""
        self._endings.relay_lost(reason)
        self._x.alone_since = self._x.clock()
        for session in self._sessions.values():
            session.wake()

    def _echoed(self, batch: list[FrameView]) -> None:
        self._turn(self._pass_echo, batch)

    def _pass_echo(self, batch: list[FrameView]) -> None:
        self._cartridge_side.route(self._echo, batch)
        if any(view.type in TERMINAL_TYPES and view.xid is None for view in batch):
            # A switch may swallow what was advertised while it was checking the identity of this host.
            self._x.advertise = True

    # Processes (the Keeper's part)

    def _launch(self, cartridge: Cartridge) -> None:
        self._begin(Process(cartridge, self, self._guardian))

    def _begin(self, session: Session) -> None:
        assert self._nursery is not None
        cartridge = session.cartridge
        cartridge.limits = self.settings.limits
        cartridge.muted, cartridge.cancelling = False, 0
        self._sessions[cartridge] = session
        self._nursery.start_soon(session.run, name=f"cartridge {cartridge.id}")

    def received(self, session: Session, batch: Sequence[Parcel]) -> None:
        """Take frames of a session."""
        self._turn(self._take, session, batch)

    def _take(self, session: Session, batch: Sequence[Parcel]) -> None:
        cartridge = session.cartridge
        if cartridge.port is None:
            batch = session.take(batch)
            for view in session.handshake.lost:
                self._x.unroutable(view, cartridge, "it came before the answer to the identity check")
            session.handshake.lost.clear()
            if session.handshake.step is Step.DONE and cartridge.state is State.STARTING:
                self._ready(session)
        if cartridge.port is session:
            cartridge.heard = True
            self._cartridge_side.route(cartridge, batch)

    def _ready(self, session: Session) -> None:
        cartridge, handshake = session.cartridge, session.handshake
        assert handshake.manifest is not None
        cartridge.move(Event.READY)
        cartridge.port = session
        cartridge.limits = handshake.limits
        cartridge.adopt(handshake.manifest, handshake.pools)
        cartridge.failed_starts, cartridge.not_before, cartridge.trouble = 0, 0.0, None
        cartridge.told.tell_tolerated(cartridge.id, handshake.tolerated)
        self._x.limits = self._x.limits.negotiate(handshake.limits)
        if cartridge.retired_at is None:
            self._x.offer_caps(cartridge)
        self._health.begin(cartridge)
        self._relay_side.ready(cartridge)
        session.settled.set()
        session.wake()

    def check(self, cartridge: Cartridge) -> None:
        """Do what is due for a running cartridge."""
        self._turn(self._health.check, cartridge)

    def due(self, cartridge: Cartridge) -> float:
        """Return when `check` is to be called next."""
        return self._health.due(cartridge)

    def ended(self, session: Session, end: ProcessEnd) -> None:
        """Settle what a session held, once it is gone."""
        self._turn(self._settle, session, end)

    def _settle(self, session: Session, end: ProcessEnd) -> None:
        del self._sessions[session.cartridge]
        self._departures.settle(session, end)

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Advertise, then serve until cancelled. Cancellation kills and reaps every process before it goes on."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._turn(self._open if self._link is not None else partial(self._lose_relay, _ALONE))
                self._turn(self._warm)
                task_status.started()
                try:
                    await self._republish()
                finally:
                    self._turn(self._close)
        finally:
            self._nursery = None

    def _warm(self) -> None:
        """Start what is to run before anybody asks for it."""
        for cartridge in self._roster.current.values():
            if cartridge.record.warm and cartridge.state is State.REGISTERED:
                self._start(cartridge)

    async def _republish(self) -> None:
        while True:
            await trio.sleep(self.settings.republish_interval)
            if self._sessions and self._up_queued() < _UNREAD:
                self._turn(self._readvertise)

    def _open(self) -> None:
        self._x.closing = self._x.alone_since = None
        self._x.advertise = True

    def _readvertise(self) -> None:
        self._x.advertise = True

    async def shutdown(self) -> None:
        """Refuse what comes, end everything held while the link is up, say so to the relay, stop every process.

        Takes `flush_timeout` and `stop_grace` at most; then `run` may be cancelled. Cancelling it leaves the rest to
        the end of `run`.
        """
        self._turn(self._close)
        if isinstance(self._link, ByteLink):
            with trio.move_on_after(self.settings.flush_timeout):
                await self._link.flushed()
        sessions = list(self._sessions.values())
        for session in sessions:
            session.stop()
        for session in sessions:
            await session.gone.wait()

    def _close(self) -> None:
        self._closed = True
        self._x.advertise = True
        self._endings.settle_all(HOST_ABORT)

    def start(self, record_id: str) -> None:
        """Start a cartridge before a request does, so that its manifest tells its caps; `run` must be under way.

        One that runs, is broken or in a pause is left as it is. Raises ConfigError for an unknown id.
        """
        cartridge = self._roster.find(record_id)
        self._turn(self._start, cartridge)

    def _start(self, cartridge: Cartridge) -> None:
        x = self._x
        if cartridge.state in STARTABLE and not self._closed and cartridge.not_before <= x.clock():
            x.start(cartridge)

    def reset(self, record_id: str) -> None:
        """Let a cartridge that is broken or in a pause be started again. Raises ConfigError for an unknown id."""
        cartridge = self._roster.find(record_id)
        self._turn(self._reset, cartridge)

    def _reset(self, cartridge: Cartridge) -> None:
        if cartridge.state in (State.BROKEN, State.DEAD):
            cartridge.move(Event.RESET)
            cartridge.forgive()
            self._x.advertise = True

    def sync_roster(self, records: Sequence[CartridgeRecord]) -> None:
        """Make `records` the cartridges that the host has; attached ones are not touched.

        What is no longer there, or has changed, takes no new requests from now on and is stopped once it holds none,
        or killed after `retire_timeout`. It comes back if its record does before that. A broken one that stays is
        reset. Raises ConfigError, and changes nothing, if two have one id.
        """
        retired: list[Cartridge] = self._roster.sync(records)
        for cartridge in retired:
            session = self._sessions.get(cartridge)
            if session is None:
                self._roster.drop(cartridge)
            elif cartridge.is_idle:
                session.stop()
            else:
                session.wake()
        self._turn(self._reset_broken)
        if self._nursery is not None:
            self._turn(self._warm)

    def _reset_broken(self) -> None:
        for cartridge in self._roster.current.values():
            if cartridge.state is State.BROKEN:
                self._reset(cartridge)

    def set_capacities(self, record_id: str, capacities: Mapping[str, int]) -> None:
        """Ask a cartridge for these sizes of its pools (0: unlimited), with the next heartbeat, and each new process.

        Raises ConfigError for an unknown id, a pool that the cartridge is known not to have, or a size below 0.
        """
        cartridge = self._roster.find(record_id)
        for pool, size in capacities.items():
            if cartridge.manifest is not None and pool not in cartridge.pools:
                known = ", ".join(cartridge.pools)
                raise ConfigError(f"cartridge {record_id!r} has no pool {pool!r}; its pools are: {known}")
            if type(size) is not int or size < 0:
                raise ConfigError(f"the capacity of pool {pool!r} must be an integer of at least 0, not {size!r}")
        cartridge.desired, cartridge.desired_due = dict(capacities), True

    async def attach_cartridge(self, record_id: str, link: ByteLink | LocalLink) -> None:
        """Take in a cartridge that runs already, at the far end of `link`; return when it is ready.

        The link is the host's from here on: it is closed when the cartridge has to end, and with it the cartridge is
        gone for good. Raises AttachError, which is final, if the handshake fails; ConfigError for an id that is taken;
        LocalProtocolError for a host that does not run or has been shut down. Cancellation closes the link.
        """
        self._check_runs("a cartridge")
        cartridge = self._roster.attach(record_id)
        cartridge.begin()
        session = Attached(cartridge, self, link)
        self._begin(session)
        try:
            await session.settled.wait()
        finally:
            if not session.settled.is_set():
                session.stop()
        if session.gone.is_set():
            raise AttachError(cartridge.trouble.message if cartridge.trouble is not None else "the host is closing")

    def snapshot(self) -> dict[str, Any]:
        """Return what is true now, as JSON values: the host's id (which RELAY_NOTIFY tells too), the policy, every
        cartridge, what open streams may come to (bytes), and the protocol stats.
        """
        return {
            "id": self._x.host_id,
            "policy": self._x.policy.value if self._x.policy is not None else None,
            "cartridges": [cartridge.snapshot(self._x.clock()) for cartridge in self._roster],
            "debt": self._x.debt.owed,
            "protocol": self._x.snapshot(),
        }


class _RelayEnd:
    """The host as the receiver of one relay's link; what comes after the end of the link goes nowhere."""

    def __init__(self, host: HostRuntime) -> None:
        self._host: HostRuntime | None = host

    def deliver(self, batch: Sequence[Parcel]) -> None:
        """Take the frames of one read."""
        if self._host is not None:
            self._host.relayed(batch)

    deliver_parcels = deliver

    def closed(self, reason: str) -> None:
        """The link has ended."""
        host, self._host = self._host, None
        if host is not None:
            host.relay_lost(reason)


def _relay_lost(reason: str) -> CancelReason:
    return CancelReason("MASTER_DIED", AttributionClass.ENVIRONMENT, f"the link to the relay has ended: {reason}")


def _identity_cartridge(settings: HostSettings) -> Cartridge:
    record = CartridgeRecord(id="identity", command=(IDENTITY_CAP,), caps=[identity_cap()])
    cartridge = Cartridge(record, settings, serves_identity=True)
    cartridge.move(Event.START)
    cartridge.move(Event.READY)
    return cartridge
