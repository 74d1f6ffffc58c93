"""A cartridge with handlers of both kinds, most of them async. Run by the launcher as `tests.cartridge.tasks_stub`."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator

from capdag.cartridge import Argument, AsyncRequest, Cartridge, CartridgeError, Request
from tests.cartridge import stub_caps as stub

assert "trio" not in sys.modules, "trio before HELLO"

cartridge = Cartridge("tasks", version="1", description="for tests")

_items = [{"media_urn": stub.ITEMS, "name": "items", "output_description": "items", "is_sequence": True}]


@cartridge.cap(stub.ECHO, title="Echo", aliases=["echo"])
async def echo(request: AsyncRequest) -> None:
    """Give every value back."""
    async for value in request.main_input():
        await request.output.write(value)


@cartridge.cap(stub.THREAD, title="Thread", aliases=["thread"])
def thread(request: Request) -> None:
    """Do the same in a thread, slowly."""
    for value in request.main_input():
        time.sleep(0.05)
        request.output.write(value)


@cartridge.cap(stub.COLLECT, title="Collect", aliases=["collect"], outputs=_items)
async def collect(request: AsyncRequest) -> None:
    """Give every item back with its meta."""
    source = request.main_input()
    await request.output.open({"sequence": await source.is_sequence(), "media": await source.media_urn()})
    async for item in source.items():
        await request.output.item(item.value, {**item.meta, "seen": True})


@cartridge.cap(stub.FLOOD, title="Flood", aliases=["flood"], outputs=_items)
async def flood(request: AsyncRequest) -> None:
    """Write items for ever."""
    while True:
        await request.output.item(b"x" * 1000)


@cartridge.cap(stub.HOLD, title="Hold", aliases=["hold"], capacity=1)
async def hold(request: AsyncRequest) -> None:
    """Wait to be cancelled, and say how that was."""
    import trio

    request.log("info", "holding")
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        request.log("info", f"cancelled: {request.cancelled}")
        with trio.CancelScope(shield=True):
            await trio.sleep(0.05)
        request.log("info", "cleaned up")
        raise


@cartridge.cap(stub.STUBBORN, title="Stubborn", aliases=["stubborn"])
async def stubborn(request: AsyncRequest) -> None:
    """Clean up for longer than anybody waits."""
    import trio

    request.log("info", "working")
    with trio.CancelScope(shield=True):
        await trio.sleep(60)


@cartridge.cap(stub.ERROR, title="Error", aliases=["error"])
async def error(_request: AsyncRequest) -> None:
    """Fail on purpose in a nursery."""
    import trio

    async def fail() -> None:
        raise CartridgeError("TOO_HOT", "temperature must be at most 2", "input", {"param": "temperature"})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        nursery.start_soon(trio.sleep_forever)


@cartridge.cap(stub.BOOM, title="Boom", aliases=["boom"])
async def boom(_request: AsyncRequest) -> None:
    """Fail unexpectedly."""
    raise ValueError("boom")


@cartridge.cap(stub.ASK, title="Ask", aliases=["ask"])
async def ask(request: AsyncRequest) -> None:
    """Call the cap that the argument names, with a stream of pieces, and pass the answer on as it comes."""
    cap = await request.main_input().text()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            yield bytes((number,)) * 5000

    async with request.call(cap, Argument("media:octets", pieces()), progress=(0.5, 1.0)) as call:
        async for value in call:
            await request.output.write(value)


@cartridge.cap(stub.ASK_PLAIN, title="Ask plainly", aliases=["ask-plain"])
def ask_plainly(request: Request) -> None:
    """The same in a thread."""
    cap = request.main_input().text()
    pieces = (bytes((number,)) * 5000 for number in range(100))
    with request.call(cap, Argument("media:octets", pieces), progress=(0.5, 1.0)) as call:
        for value in call:
            request.output.write(value)


@cartridge.cap(stub.LEAVE, title="Leave", aliases=["leave"])
async def leave(request: AsyncRequest) -> None:
    """Call and leave after one value."""
    async with request.call(await request.main_input().text(), Argument("media:octets", b"hello")) as call:
        async for value in call:
            await request.output.write(value)
            break
    request.log("info", "left")


@cartridge.cap(stub.LEAVE_PLAIN, title="Leave plainly", aliases=["leave-plain"])
def leave_plainly(request: Request) -> None:
    """The same in a thread."""
    with request.call(request.main_input().text(), Argument("media:octets", b"hello")) as call:
        for value in call:
            request.output.write(value)
            break
    request.log("info", "left")


@cartridge.cap(stub.FAN, title="Fan", aliases=["fan"])
async def fan(request: AsyncRequest) -> None:
    """Make thirty calls at once and join the answers in order."""
    import trio

    cap = await request.main_input().text()
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = await request.call(cap, Argument("media:octets", b"%d;" % number)).read()

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(one, number)
    await request.output.write(b"".join(answers[number] for number in range(30)))


@cartridge.cap(stub.NAMED, title="Named", aliases=["named"])
async def named(request: AsyncRequest) -> None:
    """Read a named output of a call, and not its main one."""
    cap = await request.main_input().text()
    arguments = Argument(stub.TEXT, "text"), Argument(stub.EXTRA, "extra")
    async with request.call(cap, *arguments, outputs=[stub.NOTES]) as call:
        await request.output.write(await call.output(stub.NOTES).read())
        await call.wait()


if __name__ == "__main__":
    cartridge.run()
