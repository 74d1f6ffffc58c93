"""A whole answer, for callers that want no stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capdag.wire import LogRecord, StreamHead

from ._events import CallEvent, Ended, Logged, StreamStarted, Value


class AnswerStream:
    """One output stream: `values` are the pieces of a scalar or the items of a sequence, `metas` those of the items."""

    def __init__(self, head: StreamHead) -> None:
        self.head = head
        self.values: list[Any] = []
        self.metas: list[Mapping[str, Any]] = []

    def joined(self) -> Any:
        """Return a scalar's bytes or text in one piece; other values, and every sequence, as the list they are."""
        if not self.head.is_sequence and self.values:
            for kind in (bytes, str):
                if all(isinstance(value, kind) for value in self.values):
                    return kind().join(self.values)
        return self.values


class Answer:
    """Everything a call gave. `meta` is that of its END."""

    def __init__(self) -> None:
        self.streams: list[AnswerStream] = []
        self.logs: list[LogRecord] = []
        self.meta: Mapping[str, Any] = {}

    @property
    def value(self) -> Any:
        """The main output, joined; None if the call has none."""
        for stream in self.streams:
            if stream.head.output is None:
                return stream.joined()
        return None

    def add(self, event: CallEvent) -> None:
        """Take one event of the call."""
        if isinstance(event, StreamStarted):
            self.streams.append(AnswerStream(event.stream))
        elif isinstance(event, Value):
            stream = next(stream for stream in self.streams if stream.head is event.stream)
            stream.values.append(event.value)
            stream.metas.append(event.meta)
        elif isinstance(event, Logged):
            self.logs.append(event.record)
        elif isinstance(event, Ended):
            self.meta = event.meta
