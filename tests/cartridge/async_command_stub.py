"""A cartridge with async handlers, for command mode."""

from __future__ import annotations

import sys

import trio

from capdag.cartridge import AsyncRequest, Cartridge

cartridge = Cartridge("tasks", version="1")


@cartridge.cap("cap:in=media:void;out=media:word;wait", title="Wait", aliases=["wait"])
async def wait(request: AsyncRequest) -> None:
    """Say a word, then wait to be cancelled."""
    try:
        await request.output.write("word\n")
        await request.output.flush()
        await trio.sleep_forever()
    finally:
        sys.stderr.write("the task was cancelled\n")


@cartridge.cap("cap:ask;in=media:void;out=media:word", title="Ask", aliases=["ask"])
async def ask(request: AsyncRequest) -> None:
    """Call another cartridge."""
    await request.output.write(await request.call("cap:in=media:void;other;out=media:word").text())


if __name__ == "__main__":
    cartridge.run()
