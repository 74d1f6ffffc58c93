"""The whole stack in one process: switch, link, host, client, with real cartridge processes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from capdag.client import Client
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.relay import Switch, open_switch
from capdag.transport import ByteLink, Guardian, local_link_pair, new_run_id, open_guardian, socket_link
from tests.links.kinds import KINDS, linked, way

LINKS = ("local", "socket")
"""The two kinds of link between switch and host that routing is tested over; `tests.links.kinds` has the others."""


class Stack(NamedTuple):
    """The parts of a running stack."""

    switch: Switch
    host: HostRuntime
    client: Client
    guardian: Guardian


async def join(kind: str, host: HostRuntime, switch: Switch) -> None:
    """Join a host that is about to run and a switch by a link over a real socket, until cancelled."""

    async def listen(end: ByteLink) -> None:
        await end.run(host.attach_relay(end))

    async def connect(end: ByteLink) -> None:
        await end.run(switch.attach(end, "host"))

    async with linked(way(kind), listen, connect):
        await trio.sleep_forever()


@asynccontextmanager
async def running_stack(
    records: Sequence[CartridgeRecord], *, link: str = "local", settings: HostSettings | None = None
) -> AsyncIterator[Stack]:
    """Run a switch and a host joined by the given kind of link; at the end the host shuts down in order.

    Any kind but these of LINKS is one over a real socket, the host's side of which listens.
    """
    async with (
        open_guardian(new_run_id()) as guardian,
        open_switch() as switch,
        trio.open_nursery() as nursery,
    ):
        if link == "local":
            ours, theirs = local_link_pair("host")
            host = HostRuntime(records, theirs, guardian, settings)
            theirs.connect(host.receiver)
            ours.connect(switch.attach(ours, "host"))
        elif link in KINDS:
            host = HostRuntime(records, None, guardian, settings)
            nursery.start_soon(join, link, host, switch)
        else:
            left, right = socket.socketpair()
            near, far = socket_link(left, "host"), socket_link(right, "relay")
            host = HostRuntime(records, far, guardian, settings)
            nursery.start_soon(far.run, host.receiver)
            nursery.start_soon(near.run, switch.attach(near, "host"))
        await nursery.start(host.run)
        try:
            for record in records:
                for cap in record.caps[:1]:
                    await switch.wait_for(str(cap["urn"]))
            yield Stack(switch, host, Client(switch), guardian)
        finally:
            with trio.move_on_after(15, shield=True):
                await host.shutdown()
            nursery.cancel_scope.cancel()
