"""How a call's events look: the answer as bytes for stdout, progress and messages on stderr."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

from capdag.client import Logged, Value
from capdag.wire import LogRecord

_BAR_WIDTH = 30
_ERASE_LINE = "\r\x1b[K"
_BETWEEN_LINES = 1.0
"""Seconds between two lines of progress where there is no terminal."""


def render_value(event: Value, *, as_json: bool) -> bytes:
    """Return what stdout gets for one value.

    Raw bytes for a piece of the main scalar output; for everything else, and for that too with `as_json`, one line of
    JSON. Named outputs and `as_json` wrap the value, so that a line says where it belongs.
    """
    stream, value = event.stream, event.value
    if as_json or stream.output is not None:
        wrapped = {"output": stream.output, "media": stream.media_urn, "value": value, "meta": dict(event.meta)}
        return _json_line({key: part for key, part in wrapped.items() if part or key == "value"})
    if stream.is_sequence or not isinstance(value, (bytes, str)):
        return _json_line(value)
    return value if isinstance(value, bytes) else value.encode()


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

    def show(self, events: Iterable[object]) -> None:
        """Show what of these events is progress or a message."""
        for event in events:
            if isinstance(event, Logged):
                self._show(event.record)
        self._stream.flush()

    def _show(self, record: LogRecord) -> None:
        if record.progress is None:
            self.clear()
            self._stream.write(f"{record.level}: {record.message}\n")
        elif self._on_terminal:
            filled = round(_BAR_WIDTH * min(1.0, max(0.0, record.progress)))
            bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
            self._stream.write(f"{_ERASE_LINE}[{bar}] {record.progress:4.0%} {record.message}")
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
