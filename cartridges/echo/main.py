"""The echo cartridge's caps. Each shows one thing that a handler can do."""

from __future__ import annotations

import time

from capdag.cartridge import Cartridge, CartridgeError, Request
from cartridges.echo import COUNT, ECHO, FAIL, SLOW_ECHO

cartridge = Cartridge("echo", version="0.1.0", description="Gives back what it is given, and fails when asked to.")


@cartridge.cap(ECHO, title="Echo", aliases=["echo"])
def echo(request: Request) -> None:
    """Give every piece back as it comes."""
    for piece in request.main_input():
        request.output.write(piece)


@cartridge.cap(
    COUNT,
    title="Count",
    aliases=["count"],
    outputs=[
        {
            "media_urn": "media:number;list",
            "name": "numbers",
            "output_description": "1, 2, 3 … up to the number given",
            "is_sequence": True,
        }
    ],
)
def count(request: Request) -> None:
    """Count up to the number in the argument, one item a number, and say how far it is."""
    last = _number(request)
    for number in range(1, last + 1):
        request.output.item(number, {"index": number - 1})
        request.progress(number / last, f"{number} of {last}")


@cartridge.cap(SLOW_ECHO, title="Slow echo", aliases=["slow-echo"], capacity=2)
def slow_echo(request: Request) -> None:
    """Give back one byte every 50 ms; stop at once when nobody wants the rest. Two at a time, the others wait."""
    for byte in request.main_input().read():
        request.check_cancelled()
        request.output.write(bytes((byte,)))
        request.output.flush()
        time.sleep(0.05)


@cartridge.cap(FAIL, title="Fail", aliases=["fail"])
def fail(request: Request) -> None:
    """End with the code, class and message in the argument, as in `NO_LUCK input the dice fell badly`."""
    words = request.main_input().read().decode(errors="replace").split(" ", 2)
    if len(words) < 3:
        raise CartridgeError("INVALID_REQUEST", f"need CODE CLASS MESSAGE, not {' '.join(words)!r}", "input")
    code, attribution, message = words
    raise CartridgeError(code, message, attribution)


def _number(request: Request) -> int:
    text = request.main_input().read().decode(errors="replace").strip()
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise CartridgeError("INVALID_REQUEST", f"need a whole number from 0 on, not {text[:40]!r}", "input")
    return number


if __name__ == "__main__":
    cartridge.run()
