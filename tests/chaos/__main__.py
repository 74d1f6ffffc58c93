"""Replay or lengthen a run of chaos: `python -m tests.chaos --seed 7 --seconds 60 --link socket`."""

from __future__ import annotations

import argparse
import logging
import sys

import trio

from tests.chaos.run import run
from tests.leaks import mark_descendants
from tests.links.kinds import KINDS
from tests.stack import LINKS


def main() -> int:
    """Run as the arguments say, print totals and faults, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--link", choices=(*LINKS, *KINDS), default="local")
    parser.add_argument("--verbose", action="store_true", help="print the host's log")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.CRITICAL)
    mark_descendants()
    report = trio.run(run, arguments.seed, arguments.seconds, arguments.link)
    print(
        f"seed {arguments.seed}, {arguments.link}: {report.events} events; {report.requests} requests, "
        f"{report.terminals} terminals, {report.cancelled} cancelled; {report.starts} starts; "
        f"memory {report.grown:+.1f} MiB"
    )
    print("ends: " + ", ".join(f"{code} {count}" for code, count in report.ends.most_common()))
    for fault in report.faults[:20]:
        print(f"FAULT {fault}")
    return 1 if report.faults else 0


sys.exit(main())
