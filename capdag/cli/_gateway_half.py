"""The gateway half of a split server: HTTP for what hosts elsewhere have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from capdag.client import Client
from capdag.config import Config
from capdag.errors import RemoteProtocolError
from capdag.gateway import Readiness
from capdag.relay import Switch, open_switch
from capdag.transport import Address, ByteLink
from capdag.transport.background import background
from capdag.wire import FrameType, FrameView
from capdag.wire.notify import read_notify

from ._admin import LocalAdmin
from ._doors import Doors
from ._http import gateway_settings, serve_gateway, shutdown_limit
from ._report import show_addresses
from ._run import Run, open_run
from ._settings import switch_settings
from ._signals import run_until_signal

PATIENCE = 5.0
"""Seconds that hosts may take for their start before HTTP is served without them."""

_LOOK_AGAIN = 0.02


def run_gateway(config: Config) -> None:
    """Serve HTTP until Ctrl-C or SIGTERM, for hosts at the addresses of `[gateway.links]`. Raises ConfigError."""
    gateway_settings(config)
    links = config.gateway.links
    doors = Doors(links, links.accept, links.hosts)
    trio.run(run_until_signal, partial(_gateway, config, doors), shutdown_limit(config))


async def _gateway(config: Config, doors: Doors, stop: trio.Event) -> None:
    async with open_run() as run, open_switch(switch_settings(config)) as switch, trio.open_nursery() as nursery:
        admin, readiness = LocalAdmin(switch, doors=doors), Readiness.STARTING
        async with trio.open_nursery() as http:
            # The port is taken first: hosts must not be held by a gateway that cannot serve.
            serve = partial(serve_gateway, Client(switch), admin, config, run, stop, lambda: readiness)
            addresses = await http.start(serve)
            await attach_hosts(switch, doors, nursery, run, stop)
            readiness = Readiness.READY
            if not stop.is_set():
                show_addresses(addresses)
        nursery.cancel_scope.cancel()


async def attach_hosts(switch: Switch, doors: Doors, nursery: trio.Nursery, run: Run, stop: trio.Event) -> None:
    """Have the switch serve all hosts that come by `doors`, in `nursery`.

    Returns once those that are dialled are ready, after `PATIENCE`, or when `stop` is set. Raises SocketError for an
    address that cannot be bound.
    """
    dialled = set(map(str, doors.dialled))
    await doors.open(nursery, run, partial(_attach, switch, dialled, doors.silence))
    await _wait_for_hosts(switch, doors.dialled, stop)


async def _wait_for_hosts(switch: Switch, addresses: Sequence[Address], stop: trio.Event) -> None:
    """Wait a little: who asks at once should not hear that there is no such model, only because a host is starting."""
    with trio.move_on_after(PATIENCE):
        # Nothing tells of it.
        while not stop.is_set() and not all(_is_ready(switch, address) for address in addresses):  # noqa: ASYNC110
            await trio.sleep(_LOOK_AGAIN)


def _is_ready(switch: Switch, address: Address) -> bool:
    return bool(switch.snapshot()["hosts"].get(str(address), {}).get("state") == "ready")


async def _attach(switch: Switch, dialled: set[str], silence: float, link: ByteLink) -> None:
    guest = Guest(switch, link, is_named=link.name in dialled)
    async with background(partial(watch_pulse, switch, guest, silence)):
        await link.run(guest)


async def watch_pulse(switch: Switch, guest: Guest, silence: float) -> None:
    """End the link of a host that is frozen: one whose processes run repeats its RELAY_NOTIFY every 2 s."""
    silent, looks, before = 0, 4, 0
    while True:
        await trio.sleep(silence / looks)
        silent = 0 if guest.link.reads != before or not _has_processes(switch, guest.name) else silent + 1
        before = guest.link.reads
        if silent == looks:
            guest.link.fail(f"the host has said nothing for {silence:g} s although its cartridges run")


def _has_processes(switch: Switch, name: str) -> bool:
    installs = switch.snapshot()["hosts"].get(name, {}).get("installed_cartridges", [])
    return any(install["runtime_stats"].get("running") and install["runtime_stats"].get("pid") for install in installs)


class Guest:
    """The first receiver of a host's link. The switch hears of it with its first frame: a stranger is told nothing.

    A host that is dialled is known by its address, any other by the id that it tells: so it gets its former slot.
    """

    def __init__(self, switch: Switch, link: ByteLink, *, is_named: bool) -> None:
        self.name = link.name
        self.link = link
        self._switch = switch
        self._is_named = is_named

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Take the frames of the first read, and have the switch take all that follows."""
        told = None if self._is_named else _host_id(batch[0])
        if told is not None:
            self.name = f"{self.link.name.partition('#')[0]}#{told}"
        receiver = self._switch.attach(self.link, self.name)
        self.link.hand_over(receiver)
        receiver.deliver(batch)

    def closed(self, reason: str) -> None:
        """The link has ended before it brought anything."""


def _host_id(view: FrameView) -> str | None:
    """Return the start of the id that a host's RELAY_NOTIFY tells, if it tells any."""
    if view.type is not FrameType.RELAY_NOTIFY:
        return None
    try:
        told = read_notify(view).host_id
    except RemoteProtocolError:  # the switch says what is wrong with it
        return None
    return told[:8] if told else None
