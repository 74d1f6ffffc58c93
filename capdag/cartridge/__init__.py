"""The SDK that a cartridge author imports: caps, handlers, streams. Synchronous; no event loop anywhere.

    from capdag.cartridge import Cartridge, Request

    cartridge = Cartridge("shout", version="0.1.0", description="Says it louder")

    @cartridge.cap("cap:in=media:text;out=media:text;shout", title="Shout", aliases=["shout"])
    def shout(request: Request) -> None:
        for text in request.main_input():
            request.output.write(text.upper())

    if __name__ == "__main__":
        cartridge.run()

Start it with `python -m capdag.cartridge MODULE`: stdin and stdout are then moved out of the way before MODULE, and
whatever engine it imports, can print to them.
"""

from __future__ import annotations

from ._cartridge import Cartridge
from ._errors import CartridgeError, RequestCancelledError
from ._input import Input
from ._output import Output
from ._request import Request

__all__ = ["Cartridge", "CartridgeError", "Input", "Output", "Request", "RequestCancelledError"]
