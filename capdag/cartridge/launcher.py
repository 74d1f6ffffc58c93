"""Starting a cartridge's module so that nothing it imports can print between the frames, or into an answer."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec

from capdag.errors import CapdagError

from ._descriptors import claim_descriptors, claim_output, open_stderr

EXIT_USAGE = 2


def launch(module: str) -> int:
    """Run `module` as the main program, as a cartridge. Returns an exit code only for what is wrong with it.

    Descriptors 0 and 1 are moved away before it is imported: for frames with a host, or, if the command line has
    arguments, 1 alone for the answer of the command. This is what the console script of a cartridge package calls.

    A module in the current folder comes before an installed one, as for `python -m`; a folder there that is no package
    (a project's, named like the package in it) does not.
    """
    open_stderr()
    if os.sep in module or module.endswith(".py"):
        return complain(_not_a_file(module))
    if not all(module.split(".")):
        return complain(f"{module!r} is not the name of a module: give it in full, as in PACKAGE.MODULE")
    try:
        if len(sys.argv) > 1:
            claim_output()
        else:
            claim_descriptors()
        _uncover(module.partition(".")[0])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except CapdagError as error:
        return complain(f"{module}: {error}")
    except ImportError as error:
        if not _is_missing(module, error):
            raise
        return complain(f"{error}: is its package installed, and is the name right?")
    return complain(f"{module} ended without calling run() of its cartridge")


def _not_a_file(path: str) -> str:
    folder, name = os.path.split(path)
    where = f", with its folder in PYTHONPATH: PYTHONPATH={folder}" if folder not in ("", os.curdir) else ""
    return f"{path!r} is a file: give the name of its module, {name.removesuffix('.py')!r}{where}"


def _uncover(name: str) -> None:
    """Take the current folder, which `python -m` puts first, off the path if a mere folder in it hides an installed
    package of this name."""
    if sys.flags.safe_path or not _is_mere_folder(name):
        return
    here = sys.path.pop(0)
    if _is_mere_folder(name):
        sys.path.insert(0, here)


def _is_mere_folder(name: str) -> bool:
    """True if what would be imported has no code of its own (a namespace package), or is not there."""
    try:
        spec = find_spec(name)
    except ValueError:  # it is imported already, and has no spec
        return False
    return spec is None or spec.origin is None


def _is_missing(module: str, error: ImportError) -> bool:
    """True if it is the module itself, or a package it is in, that cannot be found; else the fault is inside it."""
    named = error.name or ""
    return error.name is None or named == module or module.startswith(f"{named}.")


def complain(message: str) -> int:
    """Say on stderr what is wrong with how a cartridge was started; returns the exit code."""
    sys.stderr.write(f"cartridge: {message}\n")
    return EXIT_USAGE
