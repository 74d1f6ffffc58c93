"""What a plain handler is given: inputs that block for more."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Condition
from typing import Any, TypeVar

from capdag.wire import InStream

from ._inbound import InputCore, Item, Streams, Wait

T = TypeVar("T")


class Input(InputCore):
    """One argument, or one output of a call. Iterating gives its values (scalar: one a CHUNK; sequence: its items) as
    they come, and blocks for more; each value taken lets the sender send more. To be read by one thread.

    Raises RequestCancelledError once the request is over for its caller, RequestFailedError with the sender's own
    code if the sender gave up, and CartridgeError INVALID_REQUEST if a required argument does not come.
    """

    def __init__(self, source: Streams, media_urn: str, *, is_required: bool) -> None:
        super().__init__(source, media_urn, is_required=is_required)
        assert isinstance(source.changed, Condition)
        self._changed = source.changed

    @property
    def given(self) -> bool:
        """True if the caller sent this argument. Waits until that is known."""
        return self._wait_for_stream() is not None

    @property
    def media_urn(self) -> str:
        """The media URN the caller gave the stream; the declared one if an optional argument was not sent."""
        return self._media(self._wait_for_stream())

    @property
    def is_sequence(self) -> bool:
        """True if the caller sends items. Waits until that is known."""
        stream = self._wait_for_stream()
        return stream is not None and (self._feed is not None or stream.head.is_sequence)

    def __iter__(self) -> Iterator[Any]:
        self._check_unread()
        while (item := self._next()) is not None:
            yield item[0]

    def items(self) -> Iterator[Item]:
        """Iterate over the values with their meta: `item.value`, `item.meta`."""
        self._check_unread()
        while (item := self._next()) is not None:
            yield item

    def read(self) -> bytes:
        """Return the whole input as bytes: byte and text values joined, text as UTF-8; empty if an optional argument
        was not sent. A second time gives the same, as `text` and `json` do, which read it too.

        Raises CartridgeError INVALID_REQUEST for a value of another kind or an unbounded stream, LocalProtocolError if
        all its values have been taken one by one: they are not kept.
        """
        stream = self._wait_for_stream()
        if self._whole is None:
            self._begin_whole(stream)
            parts: list[bytes] = []
            while (item := self._next()) is not None:
                self._joined(parts, item[0])
            self._whole = b"".join(parts)
        return self._whole

    def text(self) -> str:
        """Return the whole input as text. Raises CartridgeError INVALID_REQUEST if it is not UTF-8."""
        from ._typed import decode_text

        return decode_text(self._bad, self.read())

    def json(self, kind: type[T]) -> T:
        """Return the whole input, JSON, as a value of type `kind`: a `msgspec.Struct`, a dataclass, `list[int]`, …

        Raises CartridgeError INVALID_REQUEST naming the field, the value seen and the remedy. Imports msgspec.
        """
        from ._typed import decode_json

        return decode_json(self._bad, self.read(), kind)

    def each(self, kind: type[T]) -> Iterator[T]:
        """Iterate over the values, each checked and converted to type `kind`. Otherwise as `json`."""
        from ._typed import convert

        for number, value in enumerate(self):
            yield convert(self._bad, number, value, kind)

    def _wait_for_stream(self) -> InStream | None:
        with self._changed:
            while True:
                stream = self._known()
                if not isinstance(stream, Wait):
                    return stream
                self._changed.wait()

    def _next(self) -> Item | None:
        told = False
        while True:
            with self._changed:
                taken, grant = self._take()
                if told and not grant and isinstance(taken, Wait):
                    self._changed.wait()
                    continue
            if grant:
                self._grant(grant)
            if not isinstance(taken, Wait):
                return taken
            if not told and not grant:
                self._source.before_wait()
                told = True
