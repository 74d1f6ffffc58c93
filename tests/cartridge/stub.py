"""A cartridge whose handlers do what tests need. Run by the launcher as `tests.cartridge.stub`."""

from __future__ import annotations

import ctypes
import threading
import time

from capdag.cartridge import Cartridge, CartridgeError, Request, RequestCancelledError
from tests.cartridge.stub_caps import (
    BOOM,
    CALLBACK,
    COLLECT,
    ERROR,
    EXTRA,
    FLOOD,
    HOLD,
    HOLD_TOO,
    ITEMS,
    LATE,
    LAZY,
    NOTES,
    OPTION,
    PRINT,
    QUIT,
    READ,
    REPORT,
    STUBBORN,
    TEXT,
    TRICKLE,
    TWO,
    UNSPEAKABLE,
    VALUES,
    VOID,
    WAIT,
    WRONG_KIND,
)

LIBC = ctypes.CDLL(None)
LIBC.puts(b"C says hello while it is imported")
LIBC.fflush(None)
print("Python says hello while it is imported")

_items = [{"media_urn": ITEMS, "name": "items", "output_description": "items", "is_sequence": True}]

cartridge = Cartridge("stub", version="1", description="for tests", capacity=3)


def hold(request: Request) -> None:
    """Work without input or output until it is cancelled."""
    request.log("info", "holding")
    while not request.cancelled:
        time.sleep(0.005)
    request.log("info", "let go")


cartridge.add_cap(HOLD, hold, title="Hold", aliases=["hold"], capacity=1)
cartridge.add_cap(HOLD_TOO, hold, title="Hold too", aliases=["hold-too"])
cartridge.add_cap(WAIT, hold, title="Wait", aliases=["wait"])
cartridge.add_pool("engine", [HOLD, HOLD_TOO], 2)


@cartridge.cap(STUBBORN, title="Stubborn", aliases=["stubborn"])
def stubborn(request: Request) -> None:
    """Work on for half a second whatever anybody says, then answer."""
    request.log("info", "working")
    time.sleep(0.5)


@cartridge.cap(READ, title="Read", aliases=["read"])
def read(request: Request) -> None:
    """Read everything and say how much it was."""
    request.log("info", "reading")
    request.output.write(str(len(request.main_input().read())))


@cartridge.cap(LAZY, title="Lazy", aliases=["lazy"])
def lazy(request: Request) -> None:
    """Read nothing for a while."""
    time.sleep(0.3)
    for _ in request.main_input():
        pass


@cartridge.cap(FLOOD, title="Flood", aliases=["flood"], outputs=_items)
def flood(request: Request) -> None:
    """Write items for ever."""
    try:
        while True:
            request.output.item(b"x" * 1000)
    except RequestCancelledError as error:
        request.log("info", f"stopped: {error}")
        raise


@cartridge.cap(CALLBACK, title="Callback", aliases=["callback"])
def callback(request: Request) -> None:
    """Wait for the callback alone."""
    told = threading.Event()
    thread = []
    request.on_cancel(lambda: thread.append(threading.current_thread().name))
    request.on_cancel(told.set)
    request.log("info", "waiting")
    told.wait(10)
    request.log("info", f"called back in another thread: {thread != [threading.current_thread().name]}")


@cartridge.cap(LATE, title="Late", aliases=["late"])
def late(request: Request) -> None:
    """Leave a thread behind that goes on when the request has ended."""

    def go_on() -> None:
        time.sleep(0.1)
        request.log("info", "too late")
        request.progress(0.5, "much too late")
        try:
            request.output.write("never")
        except RequestCancelledError:
            request.log("info", "told so")

    request.main_input().read()  # what came of it later would be a straggler as well
    threading.Thread(target=go_on, daemon=True).start()


@cartridge.cap(BOOM, title="Boom", aliases=["boom"])
def boom(_request: Request) -> None:
    """Fail unexpectedly, with a lot to say."""
    raise ValueError("boom " + "o" * 20_000)


@cartridge.cap(QUIT, title="Quit", aliases=["quit"])
def leave(_request: Request) -> None:
    """Try to end the process."""
    raise SystemExit(3)


@cartridge.cap(ERROR, title="Error", aliases=["error"])
def error(_request: Request) -> None:
    """Fail on purpose, with everything an error can say."""
    detail = {"param": "temperature", "limit": 2, "seen": 3, "retryable": False}
    raise CartridgeError("TOO_HOT", "temperature must be at most 2", "input", detail)


@cartridge.cap(UNSPEAKABLE, title="Unspeakable", aliases=["unspeakable"])
def unspeakable(_request: Request) -> None:
    """Fail with a detail that no frame can hold."""
    raise CartridgeError("TOO_HOT", "temperature must be at most 2", "input", {"seen": object()})


@cartridge.cap(VALUES, title="Values", aliases=["values"])
def values(request: Request) -> None:
    """Write every kind of value to a scalar output."""
    output = request.output
    for value in (b"ab", b"cd", "text", 7, 1.5, True, None, [1, "two"], {"k": "v"}, b"", "", [], {}, b"ef"):
        output.write(value)


@cartridge.cap(TRICKLE, title="Trickle", aliases=["trickle"])
def trickle(request: Request) -> None:
    """Write ten bytes at a time, quickly."""
    for _ in range(1000):
        request.output.write(b"0123456789")


@cartridge.cap(VOID, title="Void", aliases=["void"])
def void(_request: Request) -> None:
    """Do nothing."""


@cartridge.cap(PRINT, title="Print", aliases=["print"])
def say(_request: Request) -> None:
    """Print, in both languages."""
    LIBC.puts(b"C says hello in a handler")
    LIBC.fflush(None)
    print("Python says hello in a handler")


@cartridge.cap(REPORT, title="Report", aliases=["report"])
def report(request: Request) -> None:
    """Tell what the cartridge knows."""
    request.output.write(f"{request.cap} {cartridge.settings} {cartridge.policy}")


@cartridge.cap(COLLECT, title="Collect", aliases=["collect"], outputs=_items)
def collect(request: Request) -> None:
    """Give every item back."""
    source = request.main_input()
    request.output.open({"sequence": source.is_sequence, "media": source.media_urn})
    for number, item in enumerate(source):
        request.output.item(item, {"n": number})


@cartridge.cap(WRONG_KIND, title="Wrong kind", aliases=["wrong-kind"], outputs=_items)
def wrong_kind(request: Request) -> None:
    """Write a value to an output of items."""
    request.output.write("value")


@cartridge.cap(
    TWO,
    title="Two",
    aliases=["two"],
    args=[
        {"media_urn": TEXT, "name": "text", "required": True, "sources": [{"stdin": TEXT}]},
        {"media_urn": EXTRA, "name": "extra", "required": True, "sources": [{"position": 0}]},
        {"media_urn": OPTION, "name": "option", "required": False, "sources": [{"cli_flag": "--option"}]},
    ],
    outputs=[
        {"media_urn": TEXT, "name": "text", "output_description": "the text"},
        {"media_urn": NOTES, "name": "notes", "output_description": "notes on it"},
        {"media_urn": "media:empty", "name": "empty", "output_description": "never written"},
        {"media_urn": "media:rare", "name": "rare", "output_description": "seldom written", "optional": True},
    ],
)
def two(request: Request) -> None:
    """Take two arguments or three and give two answers."""
    option = request.input(OPTION)
    request.output.write(request.main_input().read().decode())
    note = request.input(EXTRA).read().decode()
    request.named_output(NOTES).write(f"{note} {option.read().decode() if option.given else 'no option'}")


if __name__ == "__main__":
    cartridge.run()
