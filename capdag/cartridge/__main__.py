"""`python -m capdag.cartridge MODULE [ARGUMENTS]`: start MODULE as a cartridge, by `launch`."""

from __future__ import annotations

import sys

from .launcher import complain, launch

_USAGE = "usage: python -m capdag.cartridge MODULE [manifest | --help | CAP ...]"


def main() -> int:
    """Run the module named by the first argument; returns an exit code only for what is wrong with it."""
    if len(sys.argv) < 2:
        return complain(_USAGE)
    return launch(sys.argv.pop(1))


if __name__ == "__main__":
    sys.exit(main())
