"""The recorder as a program, in the place of a cartridge's command:

    python -m capdag.trace [--payloads] (--file FILE | --into FOLDER NAME) -- COMMAND ...

With `--into` each start of the cartridge gets a file of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from .file import TraceError
from .recorder import record


def main(arguments: Sequence[str] | None = None) -> int:
    """Record one process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m capdag.trace", description="Record a cartridge's frames.")
    parser.add_argument("--payloads", action="store_true", help="keep contents (masked otherwise)")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--file", type=Path, help="the file to write")
    place.add_argument("--into", nargs=2, metavar=("FOLDER", "NAME"), help="write FOLDER/NAME-TIME-PID.trace")
    parser.add_argument("command", nargs="+", help="the command that starts the cartridge")
    asked = parser.parse_args(arguments)
    try:
        return record(asked.file or _new_file(*asked.into), asked.command, payloads=asked.payloads)
    except TraceError as error:
        print(f"capdag trace: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _new_file(folder: str, name: str) -> Path:
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    return Path(folder, f"{safe}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.trace")


if __name__ == "__main__":
    sys.exit(main())
