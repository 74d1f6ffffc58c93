"""One run: a stack, a storm, and what is left of it."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from random import Random

import msgspec
import psutil
import trio

from tests.chaos.storm import SETTINGS, Storm, Totals, records
from tests.leaks import assert_no_leaks
from tests.stack import Stack, running_stack

SETTLE = 8.0
"""Seconds for what was cancelled at the end: the cancel graces, and the end of processes that had to be killed."""

MEMORY = 32
"""MiB that this process may have grown by: what it imports, and arenas that single objects keep."""


class Report(Totals):
    """The totals of a run, and what was left: nothing, if all is well."""

    left: list[str] = msgspec.field(default_factory=list)
    grown: float = 0.0

    @property
    def faults(self) -> list[str]:
        """Everything that must not be."""
        growth = [f"{self.grown:.0f} MiB of memory"] if self.grown > MEMORY else []
        return [*self.wrong, *self.left, *growth]


async def run(seed: int, seconds: float, link: str) -> Report:
    """Blow a storm over a stack of 20 cartridges and tell what came of it. The leak check raises AssertionError."""
    report = Report()
    with assert_no_leaks():
        before = _rss()
        async with running_stack(records(Random(seed)), link=link, settings=SETTINGS) as stack:
            storm = Storm(stack.switch, seed, report)
            await storm.blow(seconds)
            with trio.move_on_after(SETTLE):
                while list(_held(stack)):  # noqa: ASYNC110 - nothing tells when tables are empty
                    await trio.sleep(0.05)
            storm.settle()
            report.left = list(_held(stack))
            snapshot = stack.host.snapshot()
            report.starts = sum(cartridge["restarts"] + 1 for cartridge in snapshot["cartridges"])
        report.grown = _rss() - before
    return report


def _held(stack: Stack) -> Iterator[str]:
    """Name what tables hold. Read when no request is open any more."""
    switch = stack.switch.snapshot()
    for row in switch["requests"]["active"]:
        yield f"the switch holds {row['cap_urn']} XID {row['xid']} in {row['phase']}, {row['age_ms']} ms old"
    for text, line in switch["queue"]["lines"].items():
        yield f"the switch holds {line['waiting']} requests in line for {text}"
    for host, facts in switch["hosts"].items():
        for cartridge, pools in facts["pools"].items():
            for pool, state in pools.items():
                if state["active"]:
                    yield f"the switch holds {state['active']} slots of {pool} of {cartridge} at {host}"
    snapshot = stack.host.snapshot()
    for name in ("incoming_rxids", "outgoing_rids"):
        if snapshot["protocol"][name]:
            yield f"the host holds {snapshot['protocol'][name]} {name}"
    for cartridge in snapshot["cartridges"]:
        for name in ("active", "waiting", "calls"):
            if cartridge[name]:
                yield f"cartridge {cartridge['id']} ({cartridge['state']}) holds {cartridge[name]} {name}"


def _rss() -> float:
    """Return the MiB this process holds, without what the allocator merely keeps."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process(os.getpid()).memory_info().rss / 2**20)
