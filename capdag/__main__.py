"""The start of the `capdag` command, which is `python -m capdag` too."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command. Ctrl-C while it loads its parts ends it in one line, as it does later."""
    try:
        from capdag.cli import main as command

        command(prog_name="capdag")
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted\n")
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The current folder, which the command itself has not either: a project's folder there would hide the package
        # that is installed from it, and a server look for its SPEC in vain.
        del sys.path[0]
    main()
