"""`python -m capdag` is the `capdag` command."""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    # The current folder, which the command itself has not either: a project's folder there would hide the package that
    # is installed from it, and a server look for its SPEC in vain.
    del sys.path[0]

from capdag.cli import main

main(prog_name="capdag")
