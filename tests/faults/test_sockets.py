"""Cuts over real sockets of every kind, in the middle of an answer and of the opening handshake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from capdag.transport import Address, ByteLink, SocketError
from capdag.transport.dialling import dial
from tests.faults.rig import Rig, Wire, rig
from tests.links.kinds import KINDS, QUICK, doorway, way
from tests.misbehave import GOOD

SAMPLES = 6


@asynccontextmanager
async def proxy(target: Address, wire: Wire) -> AsyncIterator[int]:
    """Pass one connection on to `target` by a wire; gives the port."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:

        async def carry() -> None:
            async with listener:
                source = await listener.accept()
            await wire.run((await trio.open_tcp_stream("127.0.0.1", target.port), source))

        nursery.start_soon(carry)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def one_link(it: Rig, kind: str, wire: Wire) -> str:
    """Let the switch dial the host by a wire, make a call, and part; return how it ended, if there was a link."""
    how = way(kind)

    async def serve(link: ByteLink) -> None:
        await link.run(it.host.attach_relay(link))

    async def attach(link: ByteLink) -> None:
        await link.run(it.switch.attach(link, "host"))

    async def keep(address: Address, over: trio.Event) -> None:
        with suppress(SocketError):
            await dial(address, how.dialling, QUICK, attach)
        over.set()

    over, ends = trio.Event(), list[str]()
    with trio.fail_after(20):
        async with doorway(how, serve) as (_, address), proxy(address, wire) as port, trio.open_nursery() as nursery:
            nursery.start_soon(keep, address._replace(port=port), over)

            async def ask() -> None:
                await it.switch.wait_for(GOOD)
                ends.append(await it.ask(GOOD, pieces=1_000))
                wire.cut()

            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                await over.wait()
                if it.switch.health().live == 0 and not ends:
                    asking.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    await it.nothing_is_left()
    return ends[0] if ends else ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", [0, 1])
async def test_cuts_over_sockets_end_every_request_once(kind: str, direction: int) -> None:
    """K22."""
    async with rig() as it:
        wire = Wire()
        assert await one_link(it, kind, wire) == "answered"
        total = len(wire.passed[direction])
        ends = [await one_link(it, kind, Wire(direction, total * sample // SAMPLES)) for sample in range(SAMPLES)]
        assert set(ends) <= {"", "MASTER_DIED", "answered"}
        assert ends[0] == ""
        assert "MASTER_DIED" in ends
        assert await one_link(it, kind, Wire()) == "answered"
