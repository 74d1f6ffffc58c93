"""What the cartridges that measure SDKs serve. Imports nothing: both packages read it."""

from __future__ import annotations

NAME = "measured"
OCTETS = "media:octets"

CAPS = {"pieces": True, "blocks": False, "echo": False, "cpu": False}
"""Function to whether its output is a sequence."""

PIECE = b"x" * 30
BLOCK = bytes(range(256)) * 1024
"""256 KiB: one CHUNK at the default max_chunk."""

HANDLERS_VARIABLE = "SDK_HANDLERS"
"""Environment variable: `tasks` for async handlers where a package has them."""


def cap_of(function: str) -> str:
    """Return the cap URN of a function."""
    return f"cap:in={OCTETS};measured={function};out={OCTETS}"
