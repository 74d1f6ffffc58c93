"""Cut the conversation of `test_cuts` at every byte, in both directions: `python -m tests.faults` (some minutes)."""

from __future__ import annotations

import logging
import sys
from collections import Counter

import trio
from trio.testing import MockClock

from tests.faults.rig import ROUTES, Wire, rig
from tests.faults.test_cuts import conversation, whole


async def run() -> int:
    """Cut, print how the requests ended, and return the number of cuts that went wrong."""
    wrong = 0
    passed = (await whole()).passed
    for direction, route in enumerate(ROUTES):
        ends: Counter[str] = Counter()
        async with rig() as it:
            for cut_after in range(len(passed[direction]) + 1):
                found = await conversation(it, Wire(direction, cut_after))
                ends.update(found)
                if len(found) not in (0, 3) or not set(found) <= {"answered", "MASTER_DIED"}:
                    wrong += 1
                    print(f"FAULT {route}, after {cut_after} bytes: {found}")
        told = ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))
        print(f"{route}: {len(passed[direction]) + 1} cuts; {told}", flush=True)
    return wrong


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(1 if trio.run(run, clock=MockClock(autojump_threshold=0)) else 0)
