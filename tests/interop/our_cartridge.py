"""The same cartridge built on our SDK. Run by the launcher as `tests.interop.our_cartridge`."""

from __future__ import annotations

import os

from capdag.cartridge import Argument, CartridgeError, Request, RequestCancelledError
from tests.interop import vocabulary
from tests.interop.declared import declared

_heard = 0


def echo(request: Request) -> None:
    request.output.write(request.main_input().read())


def items(request: Request) -> None:
    for item in request.main_input():
        request.output.item(item)


def steps(request: Request) -> None:
    for step in vocabulary.STEPS:
        request.progress(step, f"at {step}")
    request.log("warn", vocabulary.WARNING, "input")
    echo(request)


def fail(request: Request) -> None:
    request.main_input().read()
    code, attribution, message = vocabulary.FAILURE
    raise CartridgeError(code, message, attribution)


def hold(request: Request) -> None:
    global _heard
    request.log("info", "holding")
    try:
        request.main_input().read()
    except RequestCancelledError:
        _heard += 1
        raise


def pour(request: Request) -> None:
    global _heard
    try:
        for _ in range(vocabulary.POURED):
            request.output.item(vocabulary.PIECE)
    except RequestCancelledError:
        _heard += 1
        raise


def heard(request: Request) -> None:
    request.output.write(str(_heard).encode())


def policy(request: Request) -> None:
    request.output.write(str(cartridge.policy).encode())


def die(request: Request) -> None:
    request.main_input().read()
    request.log("info", "dying")
    request.output.write(b"half an answer")
    request.output.flush()
    os._exit(vocabulary.EXIT_STATUS)


def call(request: Request) -> None:
    cap, _, data = request.main_input().read().partition(b"\n")
    request.output.write(request.call(cap.decode(), Argument(vocabulary.OCTETS, data)).read())


if __name__ == "__main__":
    cartridge = declared(echo, items, steps, fail, hold, pour, heard, policy, die, call)
    cartridge.run()
