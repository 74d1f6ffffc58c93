"""Run the benchmarks named on the command line, or all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable

from . import codec, echo, growth, leaving, router, sdk, urn

BENCHMARKS: dict[str, Callable[[], None]] = {
    "codec": codec.main,
    "echo": echo.main,
    "growth": growth.main,
    "leaving": leaving.main,
    "memory": router.memory,
    "router": router.main,
    "sdk": sdk.main,
    "urn": urn.main,
}

names = sys.argv[1:] or list(BENCHMARKS)
unknown = [name for name in names if name not in BENCHMARKS]
if unknown:
    sys.exit(f"no benchmark named {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")
for name in names:
    BENCHMARKS[name]()
