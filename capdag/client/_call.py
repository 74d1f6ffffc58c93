"""One call of a capability, and what comes back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import trio

from capdag.errors import CODES, RemoteProtocolError, RequestFailedError
from capdag.relay import Request
from capdag.wire import (
    RESPONSE,
    USER_CANCEL,
    AnswerRules,
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    InStream,
    InStreams,
    credit_frame,
    failure_of,
    failure_of_end,
    read_log,
)

from ._arguments import Sender
from ._events import Argument, CallEvent, Ended, Logged, StreamEnded, StreamStarted, Value
from ._inbox import Inbox

PARKED_FLUSH = 0.05
"""Seconds on an empty stream after which pending credit is granted: windows along the path may be unequal, and the
sender's may be less than half of ours."""


class Call:
    """A running call. Made by `Client.call`; its methods are for one task at a time."""

    def __init__(self, arguments: Sequence[Argument], answer_limit: int | None = None) -> None:
        self._arguments = arguments
        self._answer_limit = math.inf if answer_limit is None else answer_limit
        self._answer_size = 0
        self._admitted = trio.Event()
        self._inbox = Inbox()
        self._news = trio.Event()
        self._over = False
        self._failure: RequestFailedError | None = None
        self._used: Counter[InStream] = Counter()
        self._body = trio.CancelScope()
        self._flush_at: dict[InStream, float] = {}

    def start(self, request: Request) -> None:
        """Take the request, which may have to wait until it is admitted. For the client."""
        self._request = request

    def admitted(self, request: Request) -> None:
        """Note that the request has gone out: its host's limits are known. For the switch."""
        self._request = request
        self._streams = InStreams(request.limits.initial_credit)
        self._rules = AnswerRules(request.cap, request.facts)
        self._sender = Sender(request, self._arguments)
        self._admitted.set()

    async def send_body(self) -> None:
        """Send the arguments once the request is admitted, as long as anybody may want them. For the client."""
        with self._body:
            await self._admitted.wait()
            await self._sender.run()

    @property
    def dropped_logs(self) -> int:
        """LOGs given up because they were not read in time, or that were malformed."""
        return self._inbox.dropped_logs

    def batches(self) -> AsyncIterator[list[CallEvent]]:
        """Iterate over lists of everything that is ready.

        Asking for the next list says that the last one has been used: then its CHUNKs are granted. Ends after
        `Ended`; raises RequestFailedError when the request fails, after all that came before.
        """
        return self

    def __aiter__(self) -> AsyncIterator[list[CallEvent]]:
        return self

    async def __anext__(self) -> list[CallEvent]:
        self._grant_used()
        self._flush()
        if self._inbox:
            await trio.lowlevel.checkpoint()
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            if self._over:
                raise StopAsyncIteration
            await self._park()
            self._flush()
        events, self._used = self._inbox.take()
        return events

    def cancel(self, reason: CancelReason = USER_CANCEL) -> None:
        """Send CANCEL now and end the call with `reason`, unless it has ended."""
        if not self._over:
            self._fail(reason.failure())
            self._request.cancel(reason)

    def deliver(self, batch: list[FrameView]) -> None:
        """Take what has come for the request. For the switch."""
        for view in batch:
            if self._over:
                break
            try:
                _TAKE[view.type](self, view)
                self._count(len(view.body))
            except RemoteProtocolError as error:
                self.cancel(CancelReason(error.code, CODES[error.code].attribution, str(error)))
        self._news.set()

    def _count(self, size: int) -> None:
        """Count a frame of the answer, and end the call if that makes it larger than its caller can hold."""
        self._answer_size += size
        if self._answer_size > self._answer_limit:
            why = f"the answer is over {self._answer_limit:,} bytes: ask for less, stream it, or raise answer_limit"
            self.cancel(CancelReason("ANSWER_TOO_LARGE", CODES["ANSWER_TOO_LARGE"].attribution, why))

    # What comes

    def _take_start(self, view: FrameView) -> None:
        stream = self._streams.start(view)
        self._rules.start(stream.head)
        self._inbox.add(StreamStarted(stream.head), len(view.body))

    def _take_chunk(self, view: FrameView) -> None:
        stream = self._streams.of(view)
        received = stream.chunk(view)
        for value in received.values:
            self._inbox.add(Value(stream.head, value, received.meta))
        self._inbox.owe(stream, received.owed)
        self._watch(stream)
        self._grant({stream: received.grant_now})

    def _take_stream_end(self, view: FrameView) -> None:
        stream = self._streams.of(view)
        stream.end(view)
        self._flush_at.pop(stream, None)
        self._inbox.add(StreamEnded(stream.head))

    def _take_log(self, view: FrameView) -> None:
        try:
            record = read_log(view.meta)
        except RemoteProtocolError:
            self._inbox.dropped_logs += 1
            return
        self._inbox.add(Logged(record), len(view.body))

    def _take_credit(self, view: FrameView) -> None:
        self._sender.grant(view)

    def _take_end(self, view: FrameView) -> None:
        if (failure := failure_of_end(view.meta)) is not None:
            self._fail(failure)
            return
        self._streams.check_ended()
        self._rules.end()
        self._inbox.add(Ended(view.meta))
        self._finish()

    def _take_err(self, view: FrameView) -> None:
        self._fail(failure_of(view.meta))

    def _take_stranger(self, view: FrameView) -> None:
        raise RemoteProtocolError(f"{view.type.name} came to a requester")

    def _fail(self, why: Failure) -> None:
        self._failure = why.error()
        self._finish()

    def _finish(self) -> None:
        """Nothing more comes, and nobody wants the rest of the body."""
        self._over = True
        self._body.cancel()
        self._news.set()

    # What is granted

    def _grant_used(self) -> None:
        used, self._used = self._used, Counter()
        for stream in used:
            self._watch(stream)
        self._grant({stream: stream.window.consume(chunks) for stream, chunks in used.items()})

    def _watch(self, stream: InStream) -> None:
        """Something of a stream has come or been used: what is pending then is granted if nothing more comes."""
        if not stream.ended:
            self._flush_at[stream] = trio.current_time() + PARKED_FLUSH

    async def _park(self) -> None:
        self._news = trio.Event()
        with trio.move_on_at(min(self._flush_at.values(), default=math.inf)):
            await self._news.wait()

    def _flush(self) -> None:
        """Grant what is pending of streams that have been empty for a while."""
        now = trio.current_time()
        empty = [stream for stream, due in self._flush_at.items() if due <= now]
        if not empty:
            return
        if not self._inbox.has_values:
            # What is owed belongs to items of which only a part has come: with a window as small as that part, the
            # rest waits for this very grant.
            self._used = self._inbox.take_owed()
            self._grant_used()
        for stream in empty:
            del self._flush_at[stream]
        self._grant({stream: stream.window.flush() for stream in empty})

    def _grant(self, grants: Mapping[InStream, int]) -> None:
        frames: list[Frame] = [
            credit_frame(self._request.rid, stream.head.stream_id, credit, RESPONSE)
            for stream, credit in grants.items()
            if credit and not stream.ended
        ]
        if frames:
            self._request.send(frames)


_T = FrameType

_TAKE: Mapping[FrameType, Callable[[Call, FrameView], None]] = {
    **dict.fromkeys(FrameType, Call._take_stranger),
    _T.STREAM_START: Call._take_start,
    _T.CHUNK: Call._take_chunk,
    _T.STREAM_END: Call._take_stream_end,
    _T.LOG: Call._take_log,
    _T.CREDIT: Call._take_credit,
    _T.END: Call._take_end,
    _T.ERR: Call._take_err,
}
