"""A cartridge of somebody else, for tests: started by a command, known to nobody before it tells its manifest."""

from __future__ import annotations

from capdag.cartridge import Cartridge, Request

UPPER = "cap:in=media:octets;out=media:octets;upper"

cartridge = Cartridge("upper", version="1.0.0", description="Makes ASCII letters upper case.")


@cartridge.cap(UPPER, title="Upper", aliases=["shout"])
def upper(request: Request) -> None:
    """Give every piece back in upper case."""
    for piece in request.main_input():
        request.output.write(piece.upper())


if __name__ == "__main__":
    cartridge.run()
