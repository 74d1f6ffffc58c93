"""Deadlines of a running process: heartbeats, cancels that take too long, idleness (protocol-spec/host.md, Health)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from enum import Enum, auto

from capdag.errors import AttributionClass, RemoteProtocolError
from capdag.printable import LONGEST_LINE, printable
from capdag.wire import (
    ALL_POOL,
    DropReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    failure_of,
    read_pools,
    view_of,
)
from capdag.wire.heartbeats import PROBES_A_SECOND, Beat, Probes, read_report
from capdag.wire.manifest_rules import pool_faults

from .cartridge import Cartridge, Port
from .endings import Endings
from .exchange import Exchange, log
from .lifecycle import Event, State

_UNANSWERED: Mapping[Beat, tuple[DropReason, str]] = {
    Beat.REPLY: ("no_route", "no probe has this id: a reply has the id of the probe that it answers"),
    Beat.REPEATED: (
        "no_route",
        "this id was just answered: a reply is not answered, and a probe has an id of its own",
    ),
    Beat.FLOOD: ("overrun", f"more than {PROBES_A_SECOND} probes came in a second, and are not answered"),
}
"""How what is no probe is counted, and what is said of it."""


class Pulse(Enum):
    """What is due for a cartridge's heartbeat."""

    NOTHING = auto()
    PROBE = auto()
    LATE = auto()
    KILL = auto()


class Heartbeat:
    """Probes at an interval; late after a timeout; dead when the next probe is due. Times: seconds of one clock.

    `due` is when `tick` has to be called next, `probe_id` the probe that is unanswered, `asks` whether it asks for
    capacities. `probes` are those of the other side.
    """

    def __init__(self, interval: float, timeout: float, now: float) -> None:
        self._interval = interval
        self._timeout = timeout
        self._mark = os.urandom(8)
        self._probes = 0
        self.due = now + interval
        self.sent_at = now
        self.probe_id: bytes | None = None
        self.asks = False
        self.is_late = False
        self.probes = Probes()

    def tick(self, now: float) -> Pulse:
        """Say what is due now. PROBE: send a HEARTBEAT with `probe_id`."""
        if now < self.due:
            return Pulse.NOTHING
        if self.probe_id is None:
            self._probes += 1
            self.probe_id = self._mark + self._probes.to_bytes(8, "big")
            self.sent_at, self.due = now, now + self._timeout
            return Pulse.PROBE
        if not self.is_late:
            self.is_late = True
            # Counted from now: a host that was itself held up must read what has come before it kills.
            self.due = now + self._interval - self._timeout
            return Pulse.LATE
        self.due = math.inf
        return Pulse.KILL

    def is_probe(self, beat_id: object) -> bool:
        """True for the id of any probe of ours. A reply that comes twice must not be answered: it would never end."""
        return isinstance(beat_id, bytes) and beat_id.startswith(self._mark)

    def reply(self, beat_id: object, now: float) -> bool:
        """Take a reply; False if it does not answer the probe that is out."""
        if self.probe_id is None or beat_id != self.probe_id:
            return False
        self.probe_id, self.is_late = None, False
        self.due = max(now, self.sent_at + self._interval)
        return True


class Health:
    """Does what is due for running cartridges."""

    def __init__(self, exchange: Exchange, endings: Endings) -> None:
        self._x = exchange
        self._endings = endings

    def begin(self, cartridge: Cartridge) -> None:
        """Start the clocks of a process that has become ready."""
        settings, now = self._x.settings, self._x.clock()
        cartridge.heartbeat = Heartbeat(settings.heartbeat_interval, settings.heartbeat_timeout, now)
        cartridge.idle_since = now
        cartridge.desired_due = bool(cartridge.desired)
        self._check_desired(cartridge)

    def _check_desired(self, cartridge: Cartridge) -> None:
        """Say which pools are to have a size that the cartridge does not have: it has just told its own."""
        missing = [pool for pool in cartridge.desired if pool not in cartridge.pools]
        if missing:
            known = ", ".join([pool for pool in cartridge.pools if not pool.startswith("cap:")] or [ALL_POOL])
            text = (
                f"cartridge {cartridge.id!r} has no pool {', '.join(map(repr, missing))}, which is to have a size: its "
                f"pools are {known}, and one for each cap"
            )
            cartridge.trouble = Failure("UNKNOWN_POOL", AttributionClass.INTERNAL, text)
            cartridge.trouble_at_unix = self._x.wall_clock()
            log.warning("%s", text)

    def due(self, cartridge: Cartridge) -> float:
        """Return when `check` has to be called next."""
        beat = cartridge.heartbeat.due if cartridge.heartbeat is not None else math.inf
        leave = self._retire_deadline(cartridge)
        cancels = min(self._cancel_deadline(cartridge), self._call_deadline(cartridge))
        return min(beat, cancels, self._idle_deadline(cartridge), leave)

    def check(self, cartridge: Cartridge) -> None:
        """Probe, mark, heal, kill or stop, as the time says."""
        now, settings = self._x.clock(), self._x.settings
        if cartridge.port is None:
            return
        if cartridge.heartbeat is not None:
            self._beat(cartridge, cartridge.heartbeat, now)
        if now >= self._call_deadline(cartridge):
            self._expire_calls(cartridge, now)
        if now >= self._cancel_deadline(cartridge):
            text = (
                f"cartridge {cartridge.id!r} did not end a cancelled request in time (cancel_grace_idle "
                f"{settings.cancel_grace_idle:g} s, cancel_grace_busy {settings.cancel_grace_busy:g} s)"
            )
            cartridge.port.kill(Failure("ABORTED_COLLATERAL", AttributionClass.ENVIRONMENT, text))
        elif now >= self._retire_deadline(cartridge):
            self._retire(cartridge, cartridge.port)
        elif now >= self._idle_deadline(cartridge):
            log.info("cartridge %r is stopped after %.3g s without work", cartridge.id, now - cartridge.idle_since)
            cartridge.resting = True
            cartridge.port.stop()

    def _beat(self, cartridge: Cartridge, heartbeat: Heartbeat, now: float) -> None:
        x, timeout = self._x, self._x.settings.heartbeat_timeout
        match heartbeat.tick(now):
            case Pulse.PROBE:
                assert heartbeat.probe_id is not None
                meta = {"desired_capacities": json.dumps(dict(cartridge.desired)).encode()}
                probe = Frame(FrameType.HEARTBEAT, heartbeat.probe_id, meta=meta if cartridge.desired_due else None)
                heartbeat.asks, cartridge.desired_due = cartridge.desired_due, False
                cartridge.heard = False
                x.send_down(cartridge, view_of(probe))
            case Pulse.LATE:
                log.warning("cartridge %r has not answered a heartbeat for %g s: no new work", cartridge.id, timeout)
                if cartridge.state is State.RUNNING:
                    cartridge.move(Event.LATE)
                    x.advertise = True
            case Pulse.KILL:
                if cartridge.heard:
                    log.error("cartridge %r still sends frames, but no heartbeat reply", cartridge.id)
                text = f"cartridge {cartridge.id!r} did not answer a heartbeat for {now - heartbeat.sent_at:.3g} s"
                assert cartridge.port is not None
                cartridge.port.kill(Failure("CARTRIDGE_UNHEALTHY", AttributionClass.ENVIRONMENT, text))
            case Pulse.NOTHING:
                pass

    def heard(self, cartridge: Cartridge, view: FrameView) -> None:
        """Take a HEARTBEAT of a cartridge: the reply to a probe, or a probe of its own."""
        heartbeat, now = cartridge.heartbeat, self._x.clock()
        if heartbeat is None:
            self._x.unroutable(view, cartridge)
        elif not heartbeat.is_probe(view.id):
            self._foreign(cartridge, heartbeat.probes.judge(view, now), view)
        elif not heartbeat.reply(view.id, now):
            self._x.drop(view, "no_route", cartridge, "the probe of this id has its reply")
        else:
            self._report(cartridge, view)
            self._heal(cartridge, now - heartbeat.sent_at)

    def _foreign(self, cartridge: Cartridge, beat: Beat, view: FrameView) -> None:
        """Answer a probe of a cartridge, and count what is none."""
        if beat is Beat.PROBE:
            self._answer(cartridge, view)
        else:
            reason, why = _UNANSWERED[beat]
            self._x.drop(view, reason, cartridge, why)

    def refused(self, cartridge: Cartridge, view: FrameView) -> bool:
        """Take an ERR under a probe's id: the cartridge does not want the capacities in it. False for any other."""
        heartbeat, now = cartridge.heartbeat, self._x.clock()
        if heartbeat is None or not heartbeat.reply(view.id, now):
            return False
        said = failure_of(view.meta)
        why = f"{printable(said.code, LONGEST_LINE)}: {printable(said.message, LONGEST_LINE)}"
        if heartbeat.asks:
            text = f"cartridge {cartridge.id!r} refused the capacities {dict(cartridge.desired)}: {why}"
            cartridge.desired = {}
            cartridge.trouble, cartridge.trouble_at_unix = said._replace(message=text), self._x.wall_clock()
            log.error("%s", text)
        elif cartridge.told.is_news("ERR for a probe"):
            log.warning(
                "cartridge %r answers heartbeats with ERR %s. It lives, but its pools are not known: answer with "
                "HEARTBEAT, the probe's id and pools",
                cartridge.id, why,
            )  # fmt: skip
        self._heal(cartridge, now - heartbeat.sent_at)
        return True

    def _heal(self, cartridge: Cartridge, took: float) -> None:
        if cartridge.state is State.UNHEALTHY:
            log.warning("cartridge %r answered its heartbeat after %.3g s and takes work again", cartridge.id, took)
            cartridge.move(Event.HEALED)
            self._x.advertise = True

    def _answer(self, cartridge: Cartridge, view: FrameView) -> None:
        """Reply at once; to a process that does not read, with one queued reply at most."""
        assert cartridge.port is not None
        if cartridge.port.bytes_queued == 0:
            cartridge.owes_beat = False
        if cartridge.owes_beat:
            self._x.drop(view, "overrun", cartridge, "it has not read the answer to the probe before")
            return
        cartridge.owes_beat = True
        self._x.send_down(cartridge, view_of(Frame(FrameType.HEARTBEAT, view.id)))

    def _report(self, cartridge: Cartridge, view: FrameView) -> None:
        cartridge.beat_at_unix = self._x.wall_clock()
        cartridge.reported, faults = read_report(view.meta)
        try:
            if "pools" in view.meta:
                cartridge.pools = read_pools(view.meta["pools"])
                faults += pool_faults(cartridge.manifest, cartridge.pools) if cartridge.manifest is not None else []
        except RemoteProtocolError as error:
            cartridge.muted = True
            text = f"cartridge {cartridge.id!r} sent a heartbeat reply with bad pools: {error}"
            assert cartridge.port is not None
            cartridge.port.kill(Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, text))
        for fault in faults:
            if cartridge.told.is_news(f"reply {fault.partition(' ')[0]}"):
                log.warning("cartridge %r, in heartbeat replies: %s", cartridge.id, fault)

    def _cancel_deadline(self, cartridge: Cartridge) -> float:
        """Return when the process must be killed because a cancelled request does not end."""
        if not cartridge.cancelling:
            return math.inf
        served = [row for row in cartridge.rows.values() if not row.queued]
        since = [row.cancellation.since for row in served if row.cancellation is not None]
        settings = self._x.settings
        busy = len(since) < len(served)
        return min(since) + (settings.cancel_grace_busy if busy else settings.cancel_grace_idle)

    def _call_deadline(self, cartridge: Cartridge) -> float:
        """Return when a cancelled call has waited for its terminal for long enough."""
        since = [call.cancellation.since for call in cartridge.calls.values() if call.cancellation is not None]
        return min(since, default=math.inf) + self._x.settings.call_grace

    def _expire_calls(self, cartridge: Cartridge, now: float) -> None:
        for call in list(cartridge.calls.values()):
            if call.cancellation is not None and now >= call.cancellation.since + self._x.settings.call_grace:
                self._endings.expire_call(call, call.cancellation.reason)

    def _retire(self, cartridge: Cartridge, port: Port) -> None:
        if cartridge.is_idle:
            port.stop()
        else:
            text = (
                f"cartridge {cartridge.id!r} left the roster, and what it held did not end in "
                f"{self._x.settings.retire_timeout:g} s (retire_timeout)"
            )
            port.kill(Failure("CARTRIDGE_RETIRED", AttributionClass.ENVIRONMENT, text))

    def _retire_deadline(self, cartridge: Cartridge) -> float:
        """Return when a cartridge that is not wanted any more is ended: once it holds nothing, or is out of time."""
        if cartridge.retired_at is None:
            return math.inf
        return -math.inf if cartridge.is_idle else cartridge.retired_at + self._x.settings.retire_timeout

    def _idle_deadline(self, cartridge: Cartridge) -> float:
        """Return when the process may have been idle for long enough: looked at again then, not at every request."""
        x, settings = self._x, self._x.settings
        since = cartridge.idle_since if cartridge.is_idle else x.clock()
        keep_alive = cartridge.record.keep_alive
        timeout = settings.idle_timeout if keep_alive is None else keep_alive
        deadline = math.inf if timeout is None else since + timeout
        return deadline if x.alone_since is None else min(deadline, max(since, x.alone_since) + settings.keep_warm)
