"""What a call gives its caller."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Any, NamedTuple

from capdag.wire import LogRecord, StreamHead


class Argument(NamedTuple):
    """One argument of a call.

    Scalar: `data` is bytes, whole or as they come. Sequence: `data` gives items, each any value CBOR holds; bytes are
    then one item.
    """

    media_urn: str
    data: bytes | AsyncIterable[Any]
    is_sequence: bool = False


class StreamStarted(NamedTuple):
    """An output stream has begun."""

    stream: StreamHead


class Value(NamedTuple):
    """One value of a stream: a piece of a scalar, or an item of a sequence. `meta` is the item's."""

    stream: StreamHead
    value: Any
    meta: Mapping[str, Any]


class StreamEnded(NamedTuple):
    """An output stream is complete."""

    stream: StreamHead


class Logged(NamedTuple):
    """Progress or a message."""

    record: LogRecord


class Ended(NamedTuple):
    """The request has succeeded. Always the last event."""

    meta: Mapping[str, Any]


CallEvent = StreamStarted | Value | StreamEnded | Logged | Ended
