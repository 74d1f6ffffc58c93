"""An echo of 120 bytes through client, switch and host, beside the same cartridge spoken to directly."""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import trio

from capdag.client import Argument, Client
from capdag.host import CartridgeRecord, HostRuntime
from capdag.relay import open_switch
from capdag.transport import local_link_pair, new_run_id, open_guardian

from .rounds import report
from .spoken import Spoken

COMMAND = (sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main")
ECHO = "cap:echo;in=media:octets;out=media:octets"
OCTETS = "media:octets"
DATA = bytes(120)
REQUESTS = 300


def _direct(child: Spoken) -> float:
    times = []
    for _ in range(REQUESTS):
        start = perf_counter()
        child.ask(ECHO, OCTETS, DATA)
        child.answer()
        times.append(perf_counter() - start)
    return median(times) * 1e6


async def _routed(client: Client) -> float:
    times = []
    for _ in range(REQUESTS):
        start = perf_counter()
        await client.collect(ECHO, [Argument(OCTETS, DATA)])
        times.append(perf_counter() - start)
    return median(times) * 1e6


async def _measure() -> dict[str, list[float]]:
    near, far = local_link_pair("host")
    record = CartridgeRecord("echo", COMMAND, [{"urn": ECHO}])
    async with open_guardian(new_run_id()) as guardian, open_switch() as switch, trio.open_nursery() as nursery:
        host = HostRuntime([record], far, guardian)
        far.connect(host.receiver)
        near.connect(switch.attach(near, "host"))
        await nursery.start(host.run)
        client = Client(switch)
        figures: dict[str, list[float]] = {"direct": [], "client, switch, host": []}
        with Spoken(COMMAND, {}) as direct:
            for number in range(8):
                for name, figure in (("direct", _direct(direct)), ("client, switch, host", await _routed(client))):
                    if number:
                        figures[name].append(figure)
        await host.shutdown()
        nursery.cancel_scope.cancel()
    return figures


def main() -> None:
    """Print the round trip of one request at a time."""
    figures = trio.run(_measure)

    report("echo of 120 bytes, one at a time", "us, median of 300", figures, "direct")
