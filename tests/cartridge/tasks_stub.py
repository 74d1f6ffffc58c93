"""A cartridge with handlers of both kinds, most of them async. Run by the launcher as `tests.cartridge.tasks_stub`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

from capdag.cartridge import (
    Argument,
    AsyncRequest,
    Cartridge,
    CartridgeError,
    FeedItem,
    Request,
    RequestCancelledError,
    Selector,
)
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
    """Clean up for longer than anybody waits, which is not long here."""
    import trio

    from capdag.cartridge import _async_job

    _async_job.CLEAN_UP_SECONDS = 0.2
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

    request.log("info", "fanning out")
    cap = await request.main_input().text()
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        try:
            answers[number] = await request.call(cap, Argument("media:octets", b"%d;" % number)).read()
        except RequestCancelledError:
            request.log("error", "not trio.Cancelled")
            raise

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


@cartridge.cap(stub.POLICY, title="Policy", aliases=["policy"])
async def policy(request: AsyncRequest) -> None:
    """Tell the policy whenever something comes."""
    async for _ in request.main_input():
        await request.output.write(str(cartridge.policy))


@cartridge.cap(stub.TYPED, title="Typed", aliases=["typed"])
async def typed(request: AsyncRequest) -> None:
    """Add numbers, each of which must be one."""
    total = 0
    async for number in request.main_input().each(int):
        total += number
    await request.output.write(str(total))


@cartridge.cap(stub.WRONG_THREAD, title="Wrong thread", aliases=["wrong-thread"])
async def wrong_thread(request: AsyncRequest) -> None:
    """Use the request of a task in another thread, first wrongly, then as one should."""
    import trio

    def work() -> str:
        try:
            request.log("info", "wrong")
        except Exception as error:  # noqa: BLE001 - what it was is what the test asks
            trio.from_thread.run_sync(request.log, "info", "right")
            return str(error)
        return "no error"

    await request.output.write(await trio.to_thread.run_sync(work))


@cartridge.cap(stub.KEEP, title="Keep", aliases=["keep"])
async def keep(request: AsyncRequest) -> None:
    """Be busy for a while."""
    import trio

    request.progress(0.25, "begun")
    with request.keep_alive("loading", interval=0.05):
        await trio.sleep(0.3)


@cartridge.cap(stub.KEEP_PLAIN, title="Keep plainly", aliases=["keep-plain"])
def keep_plainly(request: Request) -> None:
    """Be busy in a thread, and say so for no longer than 0.1 s."""
    request.progress(0.25, "begun")
    with request.keep_alive("loading", interval=0.05, limit=0.1):
        time.sleep(0.3)


@cartridge.cap(stub.LEFT_BEHIND, title="Left behind", aliases=["left-behind"])
def left_behind(request: Request) -> None:
    """Return while a thread still waits for the answer of a call."""
    cap = request.main_input().text()
    opened = threading.Event()

    def wait() -> None:
        try:
            with request.call(cap) as call:
                opened.set()
                call.read()
        except RequestCancelledError as error:
            print(f"told: {error.code}", file=sys.stderr, flush=True)

    threading.Thread(target=wait, daemon=True).start()
    opened.wait(5)


def _broken_pieces() -> Iterator[bytes]:
    yield b"one"
    raise CartridgeError("NO_DATA", "the source is empty", "resource")


@cartridge.cap(stub.BREAK, title="Break", aliases=["break"])
async def break_off(request: AsyncRequest) -> None:
    """Call with an argument that fails half-way."""
    await request.call(await request.main_input().text(), Argument("media:octets", _broken_pieces())).wait()


@cartridge.cap(stub.BREAK_PLAIN, title="Break plainly", aliases=["break-plain"])
def break_off_plainly(request: Request) -> None:
    """The same in a thread."""
    request.call(request.main_input().text(), Argument("media:octets", _broken_pieces())).read()


@cartridge.cap(stub.LIST, title="List", aliases=["list"])
async def call_with_items(request: AsyncRequest) -> None:
    """Call with items, twice with one object, and wait without reading."""
    call = request.call(
        await request.main_input().text(),
        Argument(stub.ITEMS, [{"n": 1}, "x" * 300_000], is_sequence=True, meta={"whole": True}),
        Argument("media:ticking", iter([1, 2]), unbounded=True),
    )
    async with call:
        await call.wait()
    try:
        await call.read()
    except RuntimeError:
        raise
    except Exception as error:  # noqa: BLE001 - what it was is what the test asks
        await request.output.write(f"{type(error).__name__}: {error}")


@cartridge.feed("media:live;ticks")
def ticks(selector: Selector) -> Iterator[FeedItem]:
    """Give `params.items` numbers, `params.every` seconds apart, in a thread."""
    if selector.device not in (None, "clock"):
        raise CartridgeError("INVALID_REQUEST", f"device {selector.device!r} is not there, only clock", "input")
    try:
        for number in range(selector.params.get("items", 1_000_000)):
            yield FeedItem(number, pts_us=number * 10, capture_ts_us=7)
            time.sleep(selector.params.get("every", 0))
    finally:
        print("ticks closed", file=sys.stderr, flush=True)


@cartridge.feed("media:live;ticks;quiet")
async def quiet_ticks(_selector: Selector) -> AsyncIterator[str]:
    """Give one item and then nothing, in a task."""
    import trio

    try:
        yield "only"
        await trio.sleep_forever()
    finally:
        print("quiet closed", file=sys.stderr, flush=True)


@cartridge.feed("media:broken;live")
def broken_feed(_selector: Selector) -> Iterator[int]:
    """Fail after one item."""
    yield 1
    raise OSError("the camera was pulled out")


@cartridge.cap(stub.WATCH, title="Watch", aliases=["watch"], outputs=_items)
async def watch(request: AsyncRequest) -> None:
    """Pass a feed on, item by item."""
    await request.output.open(unbounded=True)
    async for item in request.main_input().items():
        await request.output.item(item.value, item.meta)


@cartridge.cap(stub.WATCH_PLAIN, title="Watch plainly", aliases=["watch-plain"], outputs=_items)
def watch_plainly(request: Request) -> None:
    """The same in a thread, that looks again only when it has been told to go on."""
    source = request.main_input()
    assert source.is_sequence
    request.output.open(unbounded=True)
    for item in source.items():
        request.output.item(item.value, item.meta)


@cartridge.cap(stub.WHOLE, title="Whole", aliases=["whole"])
async def whole(request: AsyncRequest) -> None:
    """Try to read it all."""
    await request.output.write(await request.main_input().read())


@cartridge.cap(stub.BACKGROUND, title="Background", aliases=["background"])
async def background(request: AsyncRequest) -> None:
    """Leave two tasks behind: one that fails, and one that works on to the end."""
    import trio

    async def fail(text: str) -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError(text)

    async def work_on() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            print("background closed", file=sys.stderr, flush=True)

    request.start_background(fail, "in the background")
    request.start_background(work_on)


if __name__ == "__main__":
    cartridge.run()
