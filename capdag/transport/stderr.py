"""A process's stderr: drained from before HELLO until its end, into the log and a bounded tail.

An undrained pipe blocks its writer after 64 KiB (acceptance X1), so the drain keeps up with any flood; what is
bounded is what it logs and what it keeps. Nothing a process writes can act on a terminal or forge a line of the log.
"""

from __future__ import annotations

import logging
import math
import os
import re

import trio

from capdag.printable import printable

READ_SIZE = 16 << 10
"""Bytes taken in one pass of the loop: other tasks run between two passes."""

LINE_LIMIT = 8 << 10
"""Bytes of one line that are logged."""

TAIL_LIMIT = 8 << 10
"""Bytes that a tail keeps."""

LINES_A_SECOND = 200
"""Lines logged in one second; further ones are counted."""

LAST_READS = 64
"""Most reads after a cancellation: what a pipe of the largest ordinary size may hold."""


LAST_PATIENCE = 0.2
"""Seconds that a stream has for these reads: its writers have ended, or will not end."""


class StderrTail:
    """The last `TAIL_LIMIT` bytes of a process's stderr, for the message of its failure."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Add what was read; only the end is kept."""
        self._data += data
        if len(self._data) > TAIL_LIMIT:
            del self._data[:-TAIL_LIMIT]
            self._cut = True

    def text(self) -> str:
        """Return the lines, escaped; an unfinished one too. The first begins with … if something before is gone."""
        lines = [_escape(line) for line in _LINE_ENDS.split(self._data) if line]
        return ("…" if self._cut else "") + "\n".join(lines)


async def drain_stderr(
    source: int | trio.abc.ReceiveStream, *, name: str, tail: StderrTail, log: logging.Logger
) -> None:
    """Read a pipe to its end, by a non-blocking descriptor or as a stream; log its lines at INFO under `log`'s child
    `name`; feed `tail`.

    A carriage return ends a line as a newline does. A line longer than `LINE_LIMIT` is cut, and at most
    `LINES_A_SECOND` lines are logged a second; both are said in the log. Returns at the end of the pipe, also when
    `close_stderr` ends it. When cancelled, it first takes what is there already: of a pipe
    without waiting, of a stream in `LAST_PATIENCE` seconds.
    """
    lines = _LineLog(log.getChild(name))
    try:
        while (data := await _next_read(source, lines)) != b"":
            lines.feed(data)
            tail.feed(data)
    except trio.ClosedResourceError:
        return
    except trio.Cancelled:
        with trio.move_on_after(LAST_PATIENCE, shield=True):  # only a stream is waited for
            for _ in range(LAST_READS):
                if not (rest := await _last_read(source)):
                    break
                lines.feed(rest)
                tail.feed(rest)
        raise
    finally:
        lines.finish()


async def _next_read(source: int | trio.abc.ReceiveStream, lines: _LineLog) -> bytes:
    while True:
        data: bytes | None = None
        with trio.move_on_at(lines.summary_due) as until_due:
            if isinstance(source, int):
                await trio.lowlevel.wait_readable(source)
            else:
                data = bytes(await source.receive_some(READ_SIZE))
        if until_due.cancelled_caught:
            lines.summarise()
        elif isinstance(source, int):
            data = _read(source)
        if data is not None:
            return data


async def _last_read(source: int | trio.abc.ReceiveStream) -> bytes | None:
    return _read(source) if isinstance(source, int) else bytes(await source.receive_some(READ_SIZE))


def _read(fd: int) -> bytes | None:
    """Return what is there, b"" at the end, None if there is nothing yet."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None


class _LineLog:
    """Cuts a byte stream into lines and logs them, within the limits on length and rate."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._rest = b""
        self._rest_was_logged = False  # the line goes on, but was too long and has been logged cut
        self._second_ends = -math.inf
        self._room = 0
        self._unlogged = 0

    @property
    def summary_due(self) -> float:
        """The trio time by which lines that were not logged are to be mentioned; infinite if there are none."""
        return self._second_ends if self._unlogged else math.inf

    def feed(self, data: bytes) -> None:
        *ended, self._rest = _LINE_ENDS.split(self._rest + data)
        if self._rest_was_logged:
            if not ended:
                self._rest = b""
                return
            del ended[0]
            self._rest_was_logged = False
        self._show([line for line in ended if line])
        if len(self._rest) > LINE_LIMIT:
            self._show([self._rest])
            self._rest = b""
            self._rest_was_logged = True

    def finish(self) -> None:
        if self._rest:
            self._show([self._rest])
        self.summarise()

    def summarise(self) -> None:
        if self._unlogged:
            self._log.warning(
                "%d more lines on stderr were not logged (the limit is %d a second)", self._unlogged, LINES_A_SECOND
            )
            self._unlogged = 0

    def _show(self, lines: list[bytes]) -> None:
        now = trio.current_time()
        if now >= self._second_ends:
            self.summarise()
            self._second_ends = now + 1
            self._room = LINES_A_SECOND
        for line in lines[: self._room]:
            cut = f" [cut at {LINE_LIMIT} bytes]" if len(line) > LINE_LIMIT else ""
            self._log.info("%s%s", _escape(line[:LINE_LIMIT]), cut)
        self._unlogged += max(0, len(lines) - self._room)
        self._room = max(0, self._room - len(lines))


_LINE_ENDS = re.compile(rb"[\r\n]+")


def _escape(line: bytes) -> str:
    """Return the text with everything that is not UTF-8 or not printable, but tabs, as backslash escapes."""
    return printable(line.decode("utf-8", "backslashreplace"))
