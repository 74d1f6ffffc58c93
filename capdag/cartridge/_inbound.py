"""What comes in for one direction of a request: streams, their values, what is granted. No waiting here.

`Input` waits in a thread, `AsyncInput` in a task; both are this core and a wait. A `Streams` is fed by the main thread
and read under `changed`, which for tasks is no lock at all: they run in the main thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from capdag.errors import LocalProtocolError
from capdag.wire import Frame, FrameType, FrameView, InStream, InStreams, Received, credit_frame

from ._errors import CartridgeError
from ._writer import Flow


class Item(NamedTuple):
    """One value of an input with the meta its sender gave it, empty without one."""

    value: Any
    meta: Mapping[str, Any]


class Wait:
    """Nothing is there yet."""


WAIT: Final = Wait()

Taken = Item | Wait | None
"""An item, the end, or nothing yet."""


class Changed(AbstractContextManager[Any], Protocol):
    """A condition that readers wait for; how is their own business."""

    def notify_all(self) -> None:
        """Wake every reader."""


class Feed(Protocol):
    """Where the values of a live feed come from."""

    def take(self) -> Taken:
        """Under the lock: take the next item."""


class InputCore:
    """One incoming stream as its reader, a thread or a task, sees it. `done` once it was read to its end."""

    def __init__(self, source: Streams, media_urn: str, *, is_required: bool) -> None:
        self._source = source
        self._declared = media_urn
        self._is_required = is_required
        self.done = False
        self._whole: bytes | None = None
        self._stream: InStream | None = None
        self._feed: Feed | None = None
        self._values: deque[tuple[Item, int]] = deque()
        self._owed = 0

    def _bind(self, stream: InStream) -> None:
        self._stream = stream

    def _add(self, received: Received) -> None:
        """Queue what a CHUNK gave. What it owes is settled with the last value that came of it."""
        self._owed += received.owed
        last = len(received.values) - 1
        for number, value in enumerate(received.values):
            self._values.append((Item(value, received.meta), self._owed if number == last else 0))
        if received.values:
            self._owed = 0

    def _known(self) -> InStream | Wait | None:
        """Under the lock: the stream, None if it will not come, WAIT while that is open. Raises what ended everything
        before its time: that is looked at first."""
        self._source.check()
        if self._stream is not None:
            return self._stream
        if not self._source.over:
            return WAIT
        self._source.check_ending()
        if self._is_required:
            raise self._bad("is required and was not sent: send a stream of that media URN")
        return None

    def _take(self) -> tuple[Taken, int]:
        """Under the lock: take the next value. Returns it with the credit that is to be granted for it."""
        if self._feed is not None:
            self._source.check()
            taken = self._feed.take()
            self.done = taken is None
            return taken, 0
        stream = self._known()
        if stream is None or isinstance(stream, Wait):
            self.done = stream is None
            return stream, 0
        if self._values:
            item, owed = self._values.popleft()
            return item, stream.window.consume(owed) if owed and not stream.ended else 0
        if stream.ended:
            self.done = True
            return None, 0
        self._source.check_ending()
        # About to wait: all that came is used up but the beginning of an item, which the sender cannot finish without
        # credit; and unequal windows along the path could starve each other.
        grant = stream.window.consume(self._owed) + stream.window.flush()
        self._owed = 0
        return WAIT, grant

    def _grant(self, credit: int) -> None:
        assert self._stream is not None
        self._source.grant(self._stream, credit)

    def _media(self, stream: InStream | None) -> str:
        return self._declared if stream is None else stream.head.media_urn

    def _joined(self, parts: list[bytes], value: Any) -> None:
        """Add one value of a scalar input to what is read as a whole."""
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise self._bad(f"must be bytes or text, not {type(value).__name__}")
        parts.append(value)

    def _begin_whole(self, stream: InStream | None) -> None:
        """Before it is read whole for the first time."""
        self._check_unread()
        if self._feed is not None or (stream is not None and stream.head.unbounded):
            raise self._bad("has no end and cannot be read whole: take its values one by one")

    def _check_unread(self) -> None:
        """Refuse to begin once more where nothing can come: it would look like an empty input."""
        if self._stream is None or not self.done:
            return
        remedy = "keep what you took" if self._whole is None else "read() gives all of it again"
        raise LocalProtocolError(f"input {self._declared!r} was read to its end already: {remedy}")

    def _bad(self, fault: str, detail: Mapping[str, object] | None = None) -> CartridgeError:
        return self._source.bad(self._declared, fault, detail)


class Streams:
    """All incoming streams of one direction of one request. `direction` is what grants for them say.

    `send_grant` sends a CREDIT, from the reader's side; `before_wait` is called when a reader is about to wait.
    """

    direction: str

    def __init__(
        self,
        changed: Changed,
        flow: Flow,
        initial_credit: int,
        send_grant: Callable[[Frame], None],
        before_wait: Callable[[], None],
    ) -> None:
        self.changed = changed
        self.over = False
        self.before_wait = before_wait
        self._flow = flow
        self._streams = InStreams(initial_credit)
        self._send_grant = send_grant
        self._error: BaseException | None = None
        self._by_stream: dict[str, InputCore] = {}

    def check(self) -> None:
        """Raise what ended everything before its time, if anything did."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def check_ending(self) -> None:
        """Raise what ended everything, once all that came before has been read."""

    def grant(self, stream: InStream, credit: int) -> None:
        """From the reader: let the sender send `credit` more CHUNKs."""
        self._send_grant(self._credit(stream, credit))

    def _credit(self, stream: InStream, credit: int) -> Frame:
        return credit_frame(self._flow.rid, stream.head.stream_id, credit, self.direction, xid=self._flow.xid)

    def take(self, view: FrameView) -> Frame | None:
        """From the main thread: take a frame of a stream; returns a CREDIT that is due at once, if one is.

        Raises RemoteProtocolError when the sender breaks a rule, CartridgeError for what nobody can use.
        """
        with self.changed:
            if self._error is not None or self.over:
                return None
            if view.type is FrameType.STREAM_START:
                stream = self._streams.start(view)
                found = self._choose(stream)
                if found is not None:
                    found._bind(stream)
                    self._by_stream[stream.head.stream_id] = found
                self.changed.notify_all()
                return None
            stream = self._streams.of(view)
            found = self._by_stream.get(stream.head.stream_id)
            if view.type is FrameType.STREAM_END:
                stream.end(view)
                self._on_stream_end(stream)
                self.changed.notify_all()
                return None
            received = stream.chunk(view)
            if found is None:
                granted = self._discard(stream, received)
                return self._credit(stream, granted) if granted else None
            found._add(received)
            self.changed.notify_all()
            return self._credit(stream, received.grant_now) if received.grant_now else None

    def end(self) -> None:
        """From the main thread: the END has come. Raises RemoteProtocolError if a stream is still open."""
        with self.changed:
            if self._error is None:
                self._streams.check_ended()
            self.over = True
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End everything before its time: whoever reads gets `error`, now and later."""
        with self.changed:
            self._error = self._error or error
            self.changed.notify_all()

    def bad(self, media_urn: str, fault: str, detail: Mapping[str, object] | None = None) -> CartridgeError:
        """Return the error for a stream that cannot be used, naming it; `detail` adds to its param."""
        raise NotImplementedError

    def _choose(self, stream: InStream) -> InputCore | None:
        """Say which input a new stream is, None for one that nobody reads."""
        raise NotImplementedError

    def _discard(self, stream: InStream, received: Received) -> int:
        """Say what is granted for a CHUNK that nobody reads."""
        raise NotImplementedError

    def _on_stream_end(self, stream: InStream) -> None:
        """Hear that a stream has ended."""
