"""A soak of the public package and ours, joined: `python -m tests.interop --seconds 60 --roles cd --workers 6`.

In each role, workers call what comes to their mind for so long: small and large payloads, sequences, progress,
failures, calls of calls, cancels. Every answer is checked; at the end no request, process or descriptor may be left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import trio

from tests.interop.bench import ROLES, Bench, Kind, open_bench
from tests.interop.cases import CASES, FAULTS
from tests.leaks import assert_no_leaks, mark_descendants

MIXED = {"small": 8, "sequence": 4, "progress": 8, "error": 8, "two": 4, "peer-call-across": 4, "cancel": 4, "large": 1}
"""Cases that may run beside each other, and how often each is chosen."""


class Soak:
    """One role under load."""

    def __init__(self, letter: str, bench: Bench, random: Random) -> None:
        self.done: Counter[str] = Counter()
        self._letter = letter
        self._bench = bench
        self._random = random
        # Fault P2: a handler that its switch gives up in silence keeps its place for ever.
        is_deaf = (bench.role.switch, bench.role.host) == (Kind.PEER, Kind.PEER)
        self._mixed = {case: weight for case, weight in MIXED.items() if case != "cancel" or not is_deaf}

    async def work(self, end: float) -> None:
        """Run one case after the other until the time `end`. Raises what a case asserts."""
        while trio.current_time() < end:
            [case] = self._random.choices([*self._mixed], [*self._mixed.values()])
            if case == "cancel":
                await self._cancel()
            else:
                await CASES[case](self._bench, FAULTS.get((self._letter, case), ()))
            self.done[case] += 1

    async def _cancel(self) -> None:
        outcome = await self._bench.call("hold", "left", whole=False, cancel=True)
        assert outcome.ended == "cancelled", outcome


async def soak(letter: str, seconds: float, workers: int, seed: int) -> Counter[str]:
    """Run one role for so long; return how many of each case were done. Raises what a case asserts."""
    with tempfile.TemporaryDirectory() as folder:
        # Fault P9: with more than one at a time its host loses what a busy cartridge has not read.
        capacity = 1 if ROLES[letter].host is Kind.PEER else 0
        async with open_bench(letter, Path(folder), capacity) as bench:
            running = Soak(letter, bench, Random(seed))
            end = trio.current_time() + seconds
            async with trio.open_nursery() as nursery:
                for _ in range(workers):
                    nursery.start_soon(running.work, end)
            await bench.settled()
    return running.done


def main() -> int:
    """Soak every role asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each role")
    parser.add_argument("--roles", default="cd", help="letters of the roles")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    mark_descendants()
    for letter in arguments.roles:
        with assert_no_leaks():
            done = trio.run(soak, letter, arguments.seconds, arguments.workers, arguments.seed)
        told = ", ".join(f"{case} {times}" for case, times in done.most_common())
        print(f"{letter} ({ROLES[letter].title}): {done.total()} cases, all right: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
