"""What the cartridges of these tests can do, in the words of both packages. Imports nothing: both environments load it.

Each cartridge serves every function under a cap of its own: `cap("echo", "left")`.
"""

from __future__ import annotations

OCTETS = "media:octets"

FUNCTIONS = {
    "echo": "give the argument back",
    "items": "give every item of a sequence back",
    "steps": "say how far the work is, three times, and warn",
    "fail": "end with FAILURE",
    "hold": "say `holding`, then wait for the end of the argument",
    "pour": "answer POURED items, each in a CHUNK of its own: more than a window",
    "heard": "tell how many times `hold` and `pour` were cut short",
    "policy": "tell the network policy in force",
    "die": "say `dying`, answer half, and be gone without a word",
    "call": "call the cap of the argument's first line with the rest of it",
}
SEQUENCES = ("items", "pour")

STEPS = (0.25, 0.5, 0.75)
WARNING = "nearly done"
FAILURE = ("NO_LUCK", "input", "the dice fell badly")
POURED = 40
PIECE = "poured " * 100
EXIT_STATUS = 7

NAME_VARIABLE = "INTEROP_NAME"
CAPACITY_VARIABLE = "INTEROP_CAPACITY"
"""Environment variables: the name of the cartridge, and how many requests it takes at a time (0: any number)."""


def cap(function: str, cartridge: str) -> str:
    """Return the canonical URN of a function of a cartridge."""
    return "cap:" + ";".join(sorted([function, cartridge, f"in={OCTETS}", f"out={OCTETS}"]))
