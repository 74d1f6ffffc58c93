"""What the command says to people: its own words, and in them those of cartridges, hosts, clients and files."""

from __future__ import annotations

import logging
from typing import Any

import click

from capdag.printable import LONGEST_LINE, paragraph, printable_lines


def say(text: str = "", *, err: bool = False) -> None:
    """Print lines on stdout, or on stderr; nothing in them acts on a terminal."""
    click.echo(printable_lines(text, LONGEST_LINE), err=err)


class LogLine(logging.Formatter):
    """A message of the log: one line, or more that are indented, so that nobody's words pass for another message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message without a traceback."""
        return paragraph(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return a traceback."""
        return printable_lines(super().formatException(ei))
