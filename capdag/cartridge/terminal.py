"""How a call looks to a person: its answer on stdout, progress and messages on stderr, and its failure.

Command mode and `capdag call` show the same. Nothing here acts on a terminal: it is all a cartridge's words.
"""

from __future__ import annotations

import base64
import math
import shutil
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from io import IncrementalNewlineDecoder
from itertools import islice
from typing import Any, TextIO
from unicodedata import east_asian_width

from capdag.errors import AttributionClass, RequestFailedError, Retry, facts_of
from capdag.printable import LONGEST_LINE, paragraph, printable, printable_json
from capdag.wire import LogRecord, StreamHead

_BAR_WIDTH = 30
_ERASE_LINE = "\r\x1b[K"
_BETWEEN_LINES = 1.0
"""Seconds between two lines of progress where there is no terminal."""

MESSAGES_A_SECOND = 200
"""Messages shown in one second; further ones are counted."""

_LONGEST_WORD = 64
"""Characters of a code, a level or a key of detail that are shown."""

_MOST_DETAILS = 8

_WHOSE_MOVE = {
    AttributionClass.INPUT: "the request is wrong: change it",
    AttributionClass.RESOURCE: "some capacity is used up",
    AttributionClass.ENVIRONMENT: "something is amiss with this machine or its set-up",
    AttributionClass.INTERNAL: "the code is at fault",
    AttributionClass.USER: "a user or a policy wished it so",
}
_WORTH = {Retry.NO: "", Retry.NOW: "; try once more", Retry.LATER: "; try again later"}


def render_failure(error: RequestFailedError, *, whose_move: bool = True) -> str:
    """Return what a person is told of a failed request: code, class, message, detail, and whose move it is."""
    lines = [f"{printable(error.code, _LONGEST_WORD)} ({error.attribution}): {paragraph(error.message)}"]
    for key, value in islice(error.detail.items(), _MOST_DETAILS):
        lines.append(f"{printable(str(key), _LONGEST_WORD)}: {paragraph(str(value))}")
    if not whose_move:
        return "\n  ".join(lines)
    retry = facts_of(error.code, error.attribution).retry
    if type(said := error.detail.get("retryable")) is bool and said is (retry is Retry.NO):
        retry = Retry.LATER if said else Retry.NO
    worth = _WORTH[retry]
    return "\n  ".join([*lines, f"({_WHOSE_MOVE[error.attribution]}{worth})"])


def render_value(stream: StreamHead, value: Any, meta: Mapping[str, Any], *, as_json: bool) -> bytes:
    """Return what stdout gets for one value.

    Raw bytes for a piece of the main scalar output; for everything else, and for that too with `as_json`, one line of
    JSON. Named outputs and `as_json` wrap the value, so that a line says where it belongs.
    """
    if as_json or stream.output is not None:
        wrapped = {"output": stream.output, "media": stream.media_urn, "value": value, "meta": dict(meta)}
        return _json_line({key: part for key, part in wrapped.items() if part or key == "value"})
    return _json_line(value) if stream.is_sequence else render_raw(value)


def render_raw(value: Any) -> bytes:
    """Return bytes as they are, text as UTF-8, and anything else as one line of JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _json_line(value)


def _json_line(value: object) -> bytes:
    return printable_json(_json_value(value)).encode() + b"\n"


def _json_value(value: object) -> Any:
    """Return a CBOR value as JSON can hold it: bytes as {"base64": …}, keys as text, what JSON lacks as text."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


class ScreenText:
    """An answer on its way to a terminal. Anywhere else it goes byte by byte.

    Bytes are read as UTF-8. What is none, and what is not printable, is shown as backslash escapes; line breaks and
    tabs stay, and a carriage return is a line break.
    """

    def __init__(self) -> None:
        self._decoder = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("backslashreplace"), translate=True)

    def show(self, data: bytes) -> bytes:
        """Return the next piece as the terminal gets it. A character that is not whole waits for its rest."""
        return self._shown(self._decoder.decode(data))

    def end(self) -> bytes:
        """Return what has waited in vain."""
        return self._shown(self._decoder.decode(b"", final=True))

    @staticmethod
    def _shown(text: str) -> bytes:
        return "\n".join(map(printable, text.split("\n"))).encode()


class AnswerPrinter:
    """An answer on its way to stdout, value by value. A line of JSON never begins in the line of bytes or text before
    it: an output may hold text and numbers. With `raw` there is nothing between values."""

    def __init__(self, *, on_terminal: bool, as_json: bool = False, raw: bool = False) -> None:
        self._as_json = as_json
        self._raw = raw
        self._screen = ScreenText() if on_terminal else None
        self._in_line = False

    def show(self, stream: StreamHead, value: Any, meta: Mapping[str, Any]) -> bytes:
        """Return what stdout gets for a value."""
        data = render_raw(value) if self._raw else render_value(stream, value, meta, as_json=self._as_json)
        is_line = self._as_json or stream.output or stream.is_sequence or not isinstance(value, (bytes, str))
        if is_line and self._in_line and not self._raw:
            data = b"\n" + data
        if data:
            self._in_line = not data.endswith(b"\n")
        return data if self._screen is None else self._screen.show(data)

    def end(self) -> bytes:
        """Return what stdout gets at the end."""
        return b"" if self._screen is None else self._screen.end()


class Sidelines:
    """Progress and messages of a call: a bar on a terminal, a line a second and the last one anywhere else."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_line_at = self._second_ends = -math.inf
        self._room = self._unshown = 0
        self._on_terminal = stream.isatty()
        self._bar_shown = False

    def show(self, record: LogRecord) -> None:
        """Show progress or a message. It is seen once the stream is flushed."""
        if record.progress is None:
            self._show_message(record)
        elif self._on_terminal:
            filled = round(_BAR_WIDTH * record.progress)
            bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
            line = f"[{bar}] {record.progress:4.0%} {_in_one_line(record.message)}"
            # A line that wraps could not be taken away.
            self._stream.write(_ERASE_LINE + _cut(line, shutil.get_terminal_size().columns - 1))
            self._bar_shown = True
        elif record.progress >= 1.0 or self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + _BETWEEN_LINES
            self._stream.write(f"progress {record.progress:.0%}: {_in_one_line(record.message)}\n")

    def _show_message(self, record: LogRecord) -> None:
        if (now := self._clock()) >= self._second_ends:
            self._tell_unshown()
            self._second_ends, self._room = now + 1, MESSAGES_A_SECOND
        if not self._room:
            self._unshown += 1
            return
        self._room -= 1
        self.clear()
        self._stream.write(f"{printable(record.level, _LONGEST_WORD)}: {paragraph(record.message)}\n")

    def _tell_unshown(self) -> None:
        if self._unshown:
            self.clear()
            self._stream.write(f"({self._unshown} more messages; {MESSAGES_A_SECOND} a second are shown)\n")
            self._unshown = 0

    def clear(self) -> None:
        """Take the bar away, before anything else is written to the terminal."""
        if self._bar_shown:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
            self._bar_shown = False

    def end(self) -> None:
        """Take the bar away for good, and say how many messages were not shown."""
        self.clear()
        self._tell_unshown()


def _cut(line: str, columns: int) -> str:
    """Return as much of a line as fits; Chinese letters and the like take two columns."""
    for end, letter in enumerate(line):
        columns -= 2 if east_asian_width(letter) in "WF" else 1
        if columns < 0:
            return line[:end]
    return line


def _in_one_line(message: str) -> str:
    return printable(" ".join(message.split()), LONGEST_LINE)
