"""A cartridge whose author makes mistakes, each in a handler of its own, plain and async. Run by the launcher."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import trio

from capdag.cartridge import AsyncRequest, Cartridge, CartridgeError, Request

cartridge = Cartridge("mistakes", version="1", description="for tests")

KEPT: list[trio.Cancelled] = []


def cap_of(handler: Callable[..., object]) -> str:
    """Return the cap that a handler is registered with."""
    return f"cap:in=media:text;mistake={handler.__name__.replace('_', '-')};out=media:text"


def mistake(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Register a handler."""
    cartridge.add_cap(cap_of(handler), handler, title="t", aliases=[handler.__name__])
    return handler


class SilentError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class HollowError(CartridgeError):
    """Has none of what it should have."""

    def __init__(self) -> None:
        pass


class SulkyError(CartridgeError):
    """Has a message that is none."""

    def __init__(self) -> None:
        super().__init__("SULKY", "never said", "input")
        self.message = SilentError()  # type: ignore[assignment]


ERRORS: dict[str, Callable[[], BaseException]] = {
    "silent": SilentError,
    "hollow": HollowError,
    "sulky": SulkyError,
    "half": lambda: CartridgeError("HALF", "half a character: \udcff", "input", {"seen": "\udcff", "limit": 3}),
    "half-other": lambda: ValueError("half a character: \udcff"),
    "long": lambda: CartridgeError("L" * 100, "é" * 10_000, "input", {"seen": object(), "param": "p" * 10_000}),
    "detail": lambda: CartridgeError("DETAIL", "the detail is none", "input", "none"),  # type: ignore[arg-type]
    "silent-detail": lambda: CartridgeError("DETAIL", "silent inside", "input", {"seen": SilentError(), "limit": 2}),
    "several": lambda: ExceptionGroup("all", [ValueError("one"), ExceptionGroup("in", [KeyError("two")])]),
    "mixed": lambda: ExceptionGroup("all", [SilentError(), CartridgeError("CODE", "has a code", "input")]),
    "exit": SystemExit,
}


@mistake
def fail(request: Request) -> None:
    """Raise what the argument names."""
    raise ERRORS[request.main_input().text()]()


@mistake
async def fail_async(request: AsyncRequest) -> None:
    """The same in a task."""
    raise ERRORS[await request.main_input().text()]()


@mistake
def exit_on_cancel(request: Request) -> None:
    """Register a callback that tries to end the process, and be busy."""
    request.on_cancel(sys.exit)
    request.log("info", "busy")
    while not request.cancelled:
        trio.run(trio.sleep, 0.01)


@mistake
async def stray(_request: AsyncRequest) -> None:
    """Raise a cancellation that is over."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            KEPT.append(error)
            raise
    raise KEPT.pop()


@mistake
def return_text(_request: Request) -> str:
    """Return the answer."""
    return "lost"


@mistake
async def return_text_async(_request: AsyncRequest) -> str:
    """The same in a task."""
    return "lost"


@mistake
def return_awaitable(request: Request) -> object:
    """Leave it to the caller to await."""
    return fail_async(request)


@mistake
async def forget_await(request: AsyncRequest) -> None:
    """Write without awaiting it."""
    await request.output.write("kept")
    request.output.write("lost")  # type: ignore[unused-coroutine]


if __name__ == "__main__":
    cartridge.run()
