"""A cartridge for tests whose words would act on a terminal, were they let through."""

from __future__ import annotations

import os
import sys

from capdag.cartridge import Cartridge, CartridgeError, Request

HOSTILE = "cap:hostile;in=media:octets;out=media:octets"

if "refuse" in os.environ.get("CAPDAG_TEST_HOSTILE", ""):
    sys.exit(3)

cartridge = Cartridge("hostile", version="1.0.0", description="Clears the screen.")


@cartridge.cap(HOSTILE, title="Hostile", aliases=["hostile"])
def hostile(request: Request) -> None:
    """Log, answer and fail with escapes."""
    request.main_input().read()
    request.log("warn\x1b[2J", "red\x1b[31m\nError: forged")
    request.output.write(b"\x1b[2Jgone\xff\r\n")
    request.output.flush()
    raise CartridgeError("BAD" * 50, "why\x1b[2J\nError: forged" + "\n" * 3000)


if __name__ == "__main__":
    cartridge.run()
