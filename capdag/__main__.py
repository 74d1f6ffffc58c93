"""`python -m capdag` is the `capdag` command."""

from __future__ import annotations

from capdag.cli import main

main(prog_name="capdag")
