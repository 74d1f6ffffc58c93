"""The switch: callers and hosts meet here."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import trio

from capdag.transport import Link, Receiver
from capdag.transport.background import background
from capdag.urn import CapUrn
from capdag.wire import FrameView, NetworkPolicy

from ._admission import Admission
from ._alarms import Alarms
from ._attaching import Attaching
from ._endings import CLOSING, Endings, failure
from ._masters import Capability, Master, Masters, MasterState
from ._outgoing import Outgoing
from ._passage import Passage
from ._queue import Caller, Queue
from ._request import Admitted, Deliver, Request
from ._router import Router
from ._rows import Rows
from ._settings import SwitchSettings
from ._snapshot import snapshot


class Health(NamedTuple):
    """How a switch stands: living hosts by state, requests that are with a host, requests that wait."""

    hosts: Mapping[str, int]
    live: int
    waiting: int

    @property
    def is_ready(self) -> bool:
        """True if some host takes requests."""
        return bool(self.hosts.get(MasterState.READY))


class Switch:
    """Routes requests of callers and of cartridges to the hosts that serve them. Made by `open_switch`."""

    def __init__(self, settings: SwitchSettings, clock: Callable[[], float] = trio.current_time) -> None:
        self.alarms = Alarms(clock)
        self._clock = clock
        self._out = Outgoing()
        self._masters = Masters(settings.outage_grace, clock)
        self._rows = Rows(settings.table_limit)
        admission: Admission[Master, Caller] = Admission(settings.max_queued)
        self._endings = Endings(self._rows, self._out, self.alarms, clock, settings.cancel_deadline, admission.release)
        self._queue = Queue(settings, self._masters, admission, self._out, self.alarms, clock)
        self._out.settle = self._queue.settle
        self._attaching = Attaching(
            settings, self._masters, self._rows, self._endings, self._queue, self._out, self.alarms
        )
        self._passage = Passage(self._rows, self._endings, self._out, clock)
        self._router = Router(
            self._masters, self._rows, self._endings, self._attaching, self._passage, self._out, settings.limits, clock
        )

    def attach(self, link: Link, name: str) -> Receiver:
        """Take a host in; returns what its link delivers to. POLICY goes out at once.

        The host must begin with RELAY_NOTIFY and, if that offers any cap, pass the identity check: then it is routed
        to. A host that breaks the rules, or is late with either, has its link closed; so has one more than
        `max_unproved` links without proof.
        The name is what the host is known by. It takes the slot of a dead host of that name at once, and that of a
        living one when it has proved its identity: the former link is ended then.
        """
        master = self._attaching.attach(link, name)
        self._out.flush()
        return _Inlet(master, self._router, self._attaching, self._out)

    def detach(self, name: str) -> None:
        """End the link of a host and forget its slot; what it held ends with MASTER_DIED. Raises ConfigError for a
        name that no host has."""
        self._attaching.detach(name)
        self._out.flush()

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Tell a new network policy to every host, now and as they come."""
        self._attaching.set_policy(policy)
        self._out.flush()

    async def wait_for(self, cap: str) -> None:
        """Wait until some host serves `cap`. Raises UrnError for a text that is no cap URN."""
        await self._masters.wait_for(CapUrn.parse(cap))

    def open_request(
        self, cap: str, deliver: Deliver, preferred: str | None = None, *, caller: str = "",
        admitted: Admitted | None = None,
    ) -> Request:  # fmt: skip
        """Send a REQ to the host that serves `cap` best, or have it wait in line for one, also while it is away.

        `preferred` names what is chosen if it may serve: a cap, a host, or an installed cartridge by its id. Requests
        of one `caller` go in order; those who wait take turns. `admitted` is called when the REQ goes out.
        `deliver` gets everything that comes, exactly one terminal (END or ERR) last. Raises RequestFailedError:
        INVALID_REQUEST for a text that is no cap URN, NO_HANDLER, QUEUE_FULL, TABLE_FULL.
        """
        request = Request(
            self._router, self._passage, self._rows, self._endings, self._queue, self._out, deliver, admitted
        )
        request.open(cap, preferred, caller)
        return request

    def health(self) -> Health:
        """Return how the switch stands."""
        hosts = Counter(master.state.value for master in self._masters.living())
        return Health(dict(hosts), len(self._rows), len(self._queue))

    def capabilities(self) -> tuple[Capability, ...]:
        """Return the caps that are served now."""
        return self._masters.capabilities()

    def away(self) -> tuple[Capability, ...]:
        """Return the caps whose host went away less than `outage_grace` ago: a request for one joins its line."""
        return self._masters.away()

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data: requests, drops, stragglers, hosts."""
        return snapshot(self._rows, self._masters, self._queue, self._clock())

    def close(self) -> None:
        """End every request with ERR ABORTED and every link."""
        self._queue.abort_all(failure("ABORTED", CLOSING))
        self._endings.abort_all()
        self._out.flush()
        self._attaching.close()


class _Inlet:
    """The receiver of one master's link."""

    def __init__(self, master: Master, router: Router, attaching: Attaching, out: Outgoing) -> None:
        self._master = master
        self._router = router
        self._attaching = attaching
        self._out = out

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Route the frames of one read."""
        self._out.turn(partial(self._router.take, self._master, batch))

    def closed(self, reason: str) -> None:
        """Settle what the link held."""
        self._out.turn(partial(self._attaching.end, self._master, reason))


@asynccontextmanager
async def open_switch(settings: SwitchSettings | None = None) -> AsyncIterator[Switch]:
    """Run a switch for the length of the block. At its end requests that live get ERR ABORTED, and links close."""
    switch = Switch(settings or SwitchSettings())
    async with background(switch.alarms.run):
        try:
            yield switch
        finally:
            switch.close()
