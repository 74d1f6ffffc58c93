"""Every mutant held to every case: `python -m tests.conformance`. Exit code 1 if one fails another than its own."""

from __future__ import annotations

import sys

from capdag.conformance import Verdict
from tests.conformance.inprocess import check_plain
from tests.conformance.mutants import MUTANTS


def main() -> int:
    """Print a line a mutant."""
    wrong = 0
    for mutant, kind in MUTANTS.items():
        failed = [result.case.id for result in check_plain(kind).of(Verdict.FAIL)]
        wrong += failed != [mutant]
        print(f"{kind.__name__:30} {'' if failed == [mutant] else 'WRONG '}{', '.join(failed) or 'nothing fails it'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
