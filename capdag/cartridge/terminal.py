"""How a call looks to a person: its answer as bytes for stdout, progress and messages on stderr, and its failure.

Command mode and `capdag call` show the same.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from capdag.errors import AttributionClass, RequestFailedError, Retry, facts_of
from capdag.wire import LogRecord, StreamHead

_BAR_WIDTH = 30
_ERASE_LINE = "\r\x1b[K"
_BETWEEN_LINES = 1.0
"""Seconds between two lines of progress where there is no terminal."""

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
    detail = "".join(f"\n  {key}: {_indented(value)}" for key, value in error.detail.items())
    if not whose_move:
        return f"{error}{detail}"
    retry = facts_of(error.code, error.attribution).retry
    if type(said := error.detail.get("retryable")) is bool and said is (retry is Retry.NO):
        retry = Retry.LATER if said else Retry.NO
    worth = _WORTH[retry]
    return f"{error}{detail}\n  ({_WHOSE_MOVE[error.attribution]}{worth})"


def _indented(value: object) -> str:
    return str(value).replace("\n", "\n    ")


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
    return json.dumps(_json_value(value), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _json_value(value: object) -> Any:
    """Return a CBOR value as JSON can hold it: bytes as {"base64": …}, keys as text, what JSON lacks as text."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(part) for part in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


class Sidelines:
    """Progress and messages of a call: a bar on a terminal, a line a second and the last one anywhere else."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_line_at = -math.inf
        self._on_terminal = stream.isatty()
        self._bar_shown = False

    def show(self, record: LogRecord) -> None:
        """Show progress or a message. It is seen once the stream is flushed."""
        if record.progress is None:
            self.clear()
            self._stream.write(f"{record.level}: {record.message}\n")
        elif self._on_terminal:
            filled = round(_BAR_WIDTH * min(1.0, max(0.0, record.progress)))
            bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
            line = f"[{bar}] {record.progress:4.0%} {' '.join(record.message.split())}"
            # A line that wraps could not be taken away.
            self._stream.write(_ERASE_LINE + line[: shutil.get_terminal_size().columns - 1])
            self._bar_shown = True
        elif record.progress >= 1.0 or self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + _BETWEEN_LINES
            self._stream.write(f"progress {record.progress:.0%}: {record.message}\n")

    def clear(self) -> None:
        """Take the bar away, before anything else is written to the terminal."""
        if self._bar_shown:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
            self._bar_shown = False
