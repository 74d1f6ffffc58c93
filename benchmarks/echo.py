"""An echo of 120 bytes through client, switch and host, beside the same cartridge spoken to directly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import trio

from capdag.client import Argument, Client
from capdag.host import CartridgeRecord, HostRuntime
from capdag.relay import open_switch
from capdag.transport import local_link_pair, new_run_id, open_guardian
from capdag.wire import (
    DEFAULT_LIMITS,
    TERMINAL_TYPES,
    Frame,
    FrameSplitter,
    FrameType,
    FrameView,
    NetworkPolicy,
    body_end_frame,
    encode_value,
    fnv1a_64,
    hello_frame,
    inspect,
    pack,
    policy_frame,
    view_of,
)

from .rounds import report

COMMAND = (sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main")
ECHO = "cap:echo;in=media:octets;out=media:octets"
DATA = bytes(120)
REQUESTS = 300


class Direct:
    """A caller wired to the cartridge's pipes, with blocking reads and writes and nothing in between."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._splitter = FrameSplitter()
        self._ready: list[FrameView] = []
        self._rid = 0
        self._send(hello_frame(DEFAULT_LIMITS))
        self._next()
        self._send(policy_frame(NetworkPolicy.NO_TELEMETRY))

    def _send(self, *frames: Frame) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(b"".join(pack(view_of(frame), DEFAULT_LIMITS.max_frame) for frame in frames))

    def _next(self) -> FrameView:
        assert self._child.stdout is not None
        while not self._ready:
            self._ready = [inspect(body) for body in self._splitter.feed(self._child.stdout.read(65_536))]
        return self._ready.pop(0)

    def echo(self) -> None:
        """One request and its whole answer."""
        self._rid += 1
        rid, payload = self._rid.to_bytes(16, "big"), encode_value(DATA)
        self._send(
            Frame(FrameType.REQ, rid, cap=ECHO, content_type="application/cbor", payload=b""),
            Frame(FrameType.STREAM_START, rid, stream_id="a", media_urn="media:octets"),
            Frame(FrameType.CHUNK, rid, stream_id="a", payload=payload, chunk_index=0, checksum=fnv1a_64(payload)),
            Frame(FrameType.STREAM_END, rid, stream_id="a", chunk_count=1),
            body_end_frame(rid),
        )
        while self._next().type not in TERMINAL_TYPES:
            pass

    def close(self) -> None:
        """End the cartridge."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()


def _median_us(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(REQUESTS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return median(times) * 1e6


async def _routed(client: Client) -> float:
    times = []
    for _ in range(REQUESTS):
        start = perf_counter()
        await client.collect(ECHO, [Argument("media:octets", DATA)])
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
        client, direct = Client(switch), Direct()
        figures: dict[str, list[float]] = {"direct": [], "client, switch, host": []}
        try:
            for number in range(8):
                for name, figure in (
                    ("direct", _median_us(direct.echo)),
                    ("client, switch, host", await _routed(client)),
                ):
                    if number:
                        figures[name].append(figure)
        finally:
            direct.close()
        await host.shutdown()
        nursery.cancel_scope.cancel()
    return figures


def main() -> None:
    """Print the round trip of one request at a time."""
    figures = trio.run(_measure)

    report("echo of 120 bytes, one at a time", "us, median of 300", figures, "direct")
