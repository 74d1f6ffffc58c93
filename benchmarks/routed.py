"""Our host as a process of its own: `python -m benchmarks.routed SOCKET_FD CHILDREN WINDOW MAX_CHUNK`."""

from __future__ import annotations

import socket
import sys
from functools import partial

import trio

from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.transport import new_run_id, open_guardian, socket_link
from capdag.transport.allocator import keep_freed_blocks
from capdag.wire import DEFAULT_LIMITS

from .lean import cap_object, cap_of

QUIET = 3600.0
"""Seconds between advertisements: frames are counted without a look at them, and one more would be in the count."""


async def _run(sock: socket.socket, children: int, window: int, max_chunk: int) -> None:
    limits = DEFAULT_LIMITS._replace(initial_credit=window, max_chunk=max_chunk)
    numbers = [str(window), str(max_chunk)]
    records = [
        CartridgeRecord(
            f"lean{number}",
            [sys.executable, "-m", "benchmarks.lean", str(number), *numbers],
            [cap_object(cap_of(number), "media:octets")],
        )
        for number in range(children)
    ]
    link = socket_link(sock, "relay")
    async with open_guardian(new_run_id()) as guardian, trio.open_nursery() as nursery:
        host = HostRuntime(records, link, guardian, HostSettings(limits=limits, republish_interval=QUIET))
        await nursery.start(host.run)
        await link.run(host.receiver)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    keep_freed_blocks()  # as `capdag host` does
    trio.run(partial(_run, socket.socket(fileno=int(sys.argv[1])), *map(int, sys.argv[2:])))
