"""Starting a cartridge's module so that nothing it imports can print between the frames, or into an answer."""

from __future__ import annotations

import runpy
import sys

from capdag.errors import CapdagError

from ._descriptors import claim_descriptors, claim_output

EXIT_USAGE = 2


def launch(module: str) -> int:
    """Run `module` as the main program, as a cartridge. Returns an exit code only for what is wrong with it.

    Descriptors 0 and 1 are moved away before it is imported: for frames with a host, or, if the command line has
    arguments, 1 alone for the answer of the command. This is what the console script of a cartridge package calls.
    """
    try:
        if len(sys.argv) > 1:
            claim_output()
        else:
            claim_descriptors()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except CapdagError as error:
        return complain(f"{module}: {error}")
    except ImportError as error:
        if not _is_missing(module, error):
            raise
        return complain(f"{error}: is its package installed, and is the name right?")
    return complain(f"{module} ended without calling run() of its cartridge")


def _is_missing(module: str, error: ImportError) -> bool:
    """True if it is the module itself, or a package it is in, that cannot be found; else the fault is inside it."""
    named = error.name or ""
    return error.name is None or named == module or module.startswith(f"{named}.")


def complain(message: str) -> int:
    """Say on stderr what is wrong with how a cartridge was started; returns the exit code."""
    sys.stderr.write(f"cartridge: {message}\n")
    return EXIT_USAGE
