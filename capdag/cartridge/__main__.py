"""The launcher: `python -m capdag.cartridge MODULE` runs MODULE as the main program, as a cartridge.

Descriptors 0 and 1 are moved away before MODULE is imported. With more arguments MODULE is in command mode and they
stay where they are.
"""

from __future__ import annotations

import runpy
import sys

from capdag.errors import CapdagError

from ._descriptors import claim_descriptors

_USAGE = "usage: python -m capdag.cartridge MODULE [manifest | --help]"


def main() -> int:
    """Run the module named by the first argument; returns an exit code only for what is wrong with it."""
    if len(sys.argv) < 2:
        return _fail(_USAGE)
    module = sys.argv.pop(1)
    try:
        if len(sys.argv) == 1:
            claim_descriptors()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except CapdagError as error:
        return _fail(f"{module}: {error}")
    except ImportError as error:
        if not _is_missing(module, error):
            raise
        return _fail(f"{error}: is its package installed, and is the name right? {_USAGE}")
    return _fail(f"{module} ended without calling run() of its cartridge")


def _is_missing(module: str, error: ImportError) -> bool:
    """True if it is the module itself, or a package it is in, that cannot be found; else the fault is inside it."""
    named = error.name or ""
    return error.name is None or named == module or module.startswith(f"{named}.")


def _fail(message: str) -> int:
    sys.stderr.write(f"cartridge: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
