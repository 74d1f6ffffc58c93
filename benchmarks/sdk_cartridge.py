"""What the SDK is measured with: the same four caps as `sdk_peer`, as plain functions and as tasks."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.sdk_caps import BLOCK, CAPS, HANDLERS_VARIABLE, NAME, OCTETS, PIECE, cap_of
from capdag.cartridge import AsyncRequest, Cartridge, Request

cartridge = Cartridge(NAME, version="1.0.0")


def pieces(request: Request) -> None:
    """Write as many items of 30 bytes as asked."""
    for _ in range(int(request.main_input().read())):
        request.output.item(PIECE)


def blocks(request: Request) -> None:
    """Write as many blocks of one CHUNK as asked."""
    for _ in range(int(request.main_input().read())):
        request.output.write(BLOCK)


def echo(request: Request) -> None:
    """Give back what came."""
    request.output.write(request.main_input().read())


def cpu(request: Request) -> None:
    """Tell how much CPU time this process has used, in nanoseconds."""
    request.output.write(str(time.process_time_ns()).encode())


async def async_pieces(request: AsyncRequest) -> None:
    """As `pieces`."""
    for _ in range(int(await request.main_input().read())):
        await request.output.item(PIECE)


async def async_blocks(request: AsyncRequest) -> None:
    """As `blocks`."""
    for _ in range(int(await request.main_input().read())):
        await request.output.write(BLOCK)


async def async_echo(request: AsyncRequest) -> None:
    """As `echo`."""
    await request.output.write(await request.main_input().read())


plain: dict[str, Any] = {"pieces": pieces, "blocks": blocks, "echo": echo, "cpu": cpu}
tasks: dict[str, Any] = {"pieces": async_pieces, "blocks": async_blocks, "echo": async_echo, "cpu": cpu}

handlers = tasks if os.environ.get(HANDLERS_VARIABLE) == "tasks" else plain

for function, is_sequence in CAPS.items():
    output = {"media_urn": OCTETS, "name": "output", "output_description": "bytes", "is_sequence": is_sequence}
    cartridge.add_cap(cap_of(function), handlers[function], title=function, aliases=[function], outputs=[output])

if __name__ == "__main__":
    cartridge.run()
