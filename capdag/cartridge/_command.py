"""Command mode: what a cartridge does when it is started with arguments, by a person and not by a host."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from capdag.errors import CapdagError

if TYPE_CHECKING:
    from ._cartridge import Cartridge

_HELP = """\
{name} {version}: a cartridge. {description}

Commands:
  manifest   print the manifest: what this cartridge can do, as JSON
  --help     print this text

Without arguments it speaks frames with a host on stdin and stdout.
"""


def run_command(cartridge: Cartridge, arguments: list[str]) -> int:
    """Do what the arguments say; returns the exit code."""
    try:
        if arguments == ["manifest"]:
            sys.stdout.write(json.dumps(cartridge.manifest(), indent=2) + "\n")
            return 0
        if arguments in (["--help"], ["-h"]):
            facts = {"name": cartridge.name, "version": cartridge.version, "description": cartridge.description}
            sys.stdout.write(_HELP.format(**facts))
            return 0
        problem = f"unknown arguments {' '.join(arguments)!r}: `manifest` and `--help` are supported"
    except CapdagError as error:
        problem = str(error)
    sys.stderr.write(f"cartridge {cartridge.name}: {problem}\n")
    return 2
