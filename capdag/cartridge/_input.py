"""What a handler is given: the argument streams of a request, with credit granted as they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Any

from capdag.errors import AttributionClass, CapdagError
from capdag.urn import MediaUrn, UrnError
from capdag.wire import REQUEST, Frame, FrameType, FrameView, InStream, InStreams, Received, credit_frame

from ._errors import LONGEST_TEXT, CartridgeError
from ._served import ArgFacts, ServedCap
from ._writer import Flow

Grant = Callable[[Frame], None]


class Input:
    """One argument. Iterating gives its values (scalar: one a CHUNK; sequence: its items) as they come, and blocks
    for more; each value taken lets the sender send more. To be read by one thread.

    Raises RequestCancelledError once the request is over for its caller, RequestFailedError with the sender's own
    code if the sender gave up, and CartridgeError INVALID_REQUEST if a required argument does not come.
    """

    def __init__(self, arguments: Arguments, facts: ArgFacts) -> None:
        self._arguments = arguments
        self._changed = arguments.changed
        self._facts = facts
        self._stream: InStream | None = None
        self._values: deque[tuple[Any, int]] = deque()
        self._owed = 0

    @property
    def given(self) -> bool:
        """True if the caller sent this argument. Waits until that is known."""
        with self._changed:
            return self._wait_for_stream() is not None

    @property
    def media_urn(self) -> str:
        """The media URN the caller gave the stream; the declared one if an optional argument was not sent."""
        with self._changed:
            stream = self._wait_for_stream()
            return self._facts.media_urn if stream is None else stream.head.media_urn

    @property
    def is_sequence(self) -> bool:
        """True if the caller sends items. Waits until that is known."""
        with self._changed:
            stream = self._wait_for_stream()
            return stream is not None and stream.head.is_sequence

    def __iter__(self) -> Iterator[Any]:
        while (found := self._next()) is not None:
            yield found[0]

    def read(self) -> bytes:
        """Return the whole argument as bytes: byte and text values joined, text as UTF-8. Raises CartridgeError
        INVALID_REQUEST for a value of another kind."""
        parts = []
        for value in self:
            if isinstance(value, str):
                value = value.encode()
            if not isinstance(value, bytes):
                raise _bad_argument(self._facts.media_urn, f"must be bytes or text, not {type(value).__name__}")
            parts.append(value)
        return b"".join(parts)

    def _add(self, received: Received) -> None:
        """Queue what a CHUNK gave. What it owes is settled with the last value that came of it."""
        self._owed += received.owed
        last = len(received.values) - 1
        for number, value in enumerate(received.values):
            self._values.append((value, self._owed if number == last else 0))
        if received.values:
            self._owed = 0

    def _wait_for_stream(self) -> InStream | None:
        """Return the stream once it has come, None if it will not. Never after the body was given up: whatever woke
        this thread, that is looked at first."""
        while True:
            self._arguments.check()
            if self._stream is not None:
                return self._stream
            if self._arguments.body_ended:
                if self._facts.is_required:
                    raise _bad_argument(self._facts.media_urn, "is required and was not sent")
                return None
            self._changed.wait()

    def _next(self) -> tuple[Any] | None:
        told = False
        while True:
            idle = False
            with self._changed:
                stream = self._wait_for_stream()
                if stream is None:
                    return None
                if self._values:
                    value, owed = self._values.popleft()
                    grant = stream.window.consume(owed) if owed and not stream.ended else 0
                    found: tuple[Any] | None = (value,)
                elif stream.ended:
                    return None
                else:
                    # About to wait: all that came is used up but the beginning of an item, which the sender cannot
                    # finish without credit; and unequal windows along the path could starve each other.
                    found, grant = None, stream.window.consume(self._owed) + stream.window.flush()
                    self._owed = 0
                    idle = not grant
                    if idle and told:
                        self._changed.wait()
            if grant:
                self._arguments.grant(stream, grant)
            if idle and not told:
                self._arguments.before_wait()
                told = True
            if found is not None:
                return found


class Arguments:
    """All argument streams of one request: fed by the main thread, read by the worker.

    `send_grant` writes a CREDIT from the worker; `before_wait` is called when a reader is about to wait for more.
    """

    def __init__(
        self, cap: ServedCap, flow: Flow, initial_credit: int, send_grant: Grant, before_wait: Callable[[], None]
    ) -> None:
        self.changed = Condition()
        self.body_ended = False
        self._cap = cap
        self._flow = flow
        self._streams = InStreams(initial_credit)
        self.before_wait = before_wait
        self._send_grant = send_grant
        self._error: CapdagError | None = None
        self._inputs = {arg.media_urn: Input(self, arg) for arg in cap.args}
        self._by_stream: dict[str, Input] = {}

    def main(self) -> Input | None:
        """Return the input that the cap's in= names, or None for in=media:void."""
        return next((found for found in self._inputs.values() if found._facts.is_main), None)

    def named(self, media_urn: str) -> Input | None:
        """Return the input declared with this media URN, or None."""
        return self._inputs.get(str(MediaUrn.parse(media_urn)))

    def check(self) -> None:
        """Raise what ended the body before its time, if anything did."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def grant(self, stream: InStream, credit: int) -> None:
        """From the worker: let the sender send `credit` more CHUNKs."""
        self._send_grant(self._credit(stream, credit))

    def _credit(self, stream: InStream, credit: int) -> Frame:
        return credit_frame(self._flow.rid, stream.head.stream_id, credit, REQUEST, xid=self._flow.xid)

    def take(self, view: FrameView) -> Frame | None:
        """From the main thread: take a frame of a stream; returns a CREDIT that is due at once, if one is.

        Raises RemoteProtocolError when the sender breaks a rule, CartridgeError for an argument nobody declared.
        """
        with self.changed:
            if self._error is not None or self.body_ended:
                return None
            if view.type is FrameType.STREAM_START:
                self._start(view)
                self.changed.notify_all()
                return None
            stream = self._streams.of(view)
            found = self._by_stream.get(stream.head.stream_id)
            if view.type is FrameType.STREAM_END:
                stream.end(view)
                self.changed.notify_all()
                return None
            received = stream.chunk(view)
            if found is None:
                return None
            found._add(received)
            self.changed.notify_all()
            return self._credit(stream, received.grant_now) if received.grant_now else None

    def end(self) -> None:
        """From the main thread: the body's END has come. Raises RemoteProtocolError if a stream is still open."""
        with self.changed:
            if self._error is None:
                self._streams.check_ended()
            self.body_ended = True
            self.changed.notify_all()

    def fail(self, error: CapdagError) -> None:
        """End the body before its time: whoever reads gets `error`, now and later."""
        with self.changed:
            self._error = self._error or error
            self.changed.notify_all()

    def _start(self, view: FrameView) -> None:
        stream = self._streams.start(view)
        head = stream.head
        try:
            media = MediaUrn.parse(head.media_urn)
        except UrnError as error:
            raise _bad_argument(head.media_urn, f"is not a media URN: {error}") from None
        if head.output is not None:
            raise _bad_argument(head.media_urn, "names an output (key 21): only answers have outputs")
        found = self._input_of(media)
        if found is None and media.is_void:
            return
        if found is None:
            raise _bad_argument(head.media_urn, f"is not one that {self._cap.text} takes: {list(self._inputs)}")
        if found._stream is not None:
            raise _bad_argument(head.media_urn, "came twice")
        found._stream = stream
        self._by_stream[head.stream_id] = found

    def _input_of(self, media: MediaUrn) -> Input | None:
        """Choose the argument a stream is: the same media, else one that it satisfies, else the main one, so that a
        caller may be vague about the only thing it sends."""
        inputs = list(self._inputs.values())
        same = (found for found in inputs if found._facts.media.is_equivalent(media))
        fitting = (found for found in inputs if media.satisfies(found._facts.media))
        return next(same, None) or next(fitting, None) or self.main()


def _bad_argument(media_urn: str, fault: str) -> CartridgeError:
    shown = media_urn[:LONGEST_TEXT]
    text = f"argument {shown!r} {fault}"
    return CartridgeError("INVALID_REQUEST", text, AttributionClass.INPUT, {"param": shown})
