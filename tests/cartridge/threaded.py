"""Starts a cartridge's module as Windows would run it: with the loop that polls no descriptor.

What differs there is nothing but which loop is taken, and that a pipe is never found to have room.
"""

from __future__ import annotations

import sys

from capdag.cartridge import _room, _runtime, _threaded, _writer
from capdag.cartridge.__main__ import main


def _never(_: int) -> tuple[()]:
    return ()


vars(_room)["LARGE"] = 0
vars(_writer)["room_poll"] = lambda _: _never
vars(_runtime)["Runtime"] = _threaded.ThreadedRuntime

if __name__ == "__main__":
    sys.exit(main())
