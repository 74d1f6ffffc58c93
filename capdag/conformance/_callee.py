"""A call that the cartridge makes, answered by the kit: any bytes that it is given, it gives back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from capdag.errors import AttributionClass, RemoteProtocolError
from capdag.urn import CapUrn, MediaUrn, UrnError
from capdag.wire import (
    REQUEST,
    Failure,
    Frame,
    FrameType,
    FrameView,
    InStream,
    InStreams,
    Limits,
    SendWindow,
    credit_frame,
    end_frame,
    err_frame,
    failure_of,
    fnv1a_64,
    read_cancel,
)

_ANSWER = "resp-0"
_NO_BYTES = ("fmt", "record", "list", "live")
"""Tags of media whose values have a form: bytes that come back are no answer where they are asked for."""


class Callee:
    """Serves one call as an echo: its first argument comes back as it comes, under credit.

    `take` is given the frames of the call after its REQ, `send` sends those of the answer. `over` after the terminal.
    """

    def __init__(self, view: FrameView, limits: Limits, send: Callable[[Frame], None]) -> None:
        self.cap = str(view.fields.get(10))
        self.over = False
        self._rid = view.id
        self._send = send
        self._arguments = InStreams(limits.initial_credit)
        self._first: InStream | None = None
        self._window = SendWindow(limits.initial_credit)
        self._waiting: deque[bytes] = deque()
        self._media = ""
        self._sent = 0
        self._opened = self._body_ended = False
        self._begin()

    def _begin(self) -> None:
        try:
            urn = CapUrn.parse(self.cap)
        except UrnError as error:
            self._fail(Failure("INVALID_REQUEST", AttributionClass.INPUT, f"{self.cap!r} is no cap URN: {error}"))
            return
        if not (_holds_bytes(urn.in_media) and _holds_bytes(urn.out_media)):
            text = f"capdag check serves calls of caps with bytes in and out, as an echo, and not {self.cap}"
            self._fail(Failure("NO_HANDLER", AttributionClass.ENVIRONMENT, text))
        self._media = "" if urn.out_media.is_void else str(urn.out_media)

    def take(self, view: FrameView) -> None:
        """Take a frame of the call. Raises RemoteProtocolError, having ended the call, if it breaks a rule."""
        if self.over:
            return
        try:
            self._take(view)
        except RemoteProtocolError as error:
            self._fail(Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, str(error)))
            raise
        self._pump()

    def _take(self, view: FrameView) -> None:
        match view.type:
            case FrameType.STREAM_START:
                stream = self._arguments.start(view)
                self._first = self._first or stream
            case FrameType.CHUNK:
                self._chunk(self._arguments.of(view), view)
            case FrameType.STREAM_END:
                self._arguments.of(view).end(view)
            case FrameType.END:
                self._arguments.check_ended()
                self._body_ended = True
            case FrameType.CREDIT:
                self._window.grant(view.fields[19])
            case FrameType.CANCEL:
                self._fail(read_cancel(view.meta).failure())
            case FrameType.ERR:
                self._fail(failure_of(view.meta))

    def _chunk(self, stream: InStream, view: FrameView) -> None:
        received = stream.chunk(view)
        if stream is self._first and self._media:
            self._waiting.append(view.fields.get(6) or b"")
        grant = received.grant_now + stream.window.consume(received.owed) + stream.window.flush()
        if grant:
            self._send(credit_frame(self._rid, stream.head.stream_id, grant, REQUEST))

    def _pump(self) -> None:
        """Go on with the answer, as far as there is data and credit."""
        if self.over:
            return
        if self._media and not self._opened and (self._first is not None or self._body_ended):
            self._opened = True
            is_sequence = self._first is not None and self._first.head.is_sequence
            self._flow(FrameType.STREAM_START, media_urn=self._media, is_sequence=is_sequence)
        while self._waiting and self._window.take():
            payload = self._waiting.popleft()
            self._flow(FrameType.CHUNK, payload=payload, chunk_index=self._sent, checksum=fnv1a_64(payload))
            self._sent += 1
        if self._body_ended and not self._waiting:
            if self._opened:
                self._flow(FrameType.STREAM_END, chunk_count=self._sent)
            self._end(end_frame(self._rid))

    def _flow(self, kind: FrameType, **fields: object) -> None:
        self._send(Frame(kind, self._rid, stream_id=_ANSWER, **fields))  # type: ignore[arg-type]

    def _fail(self, failure: Failure) -> None:
        self._end(err_frame(self._rid, failure))

    def _end(self, terminal: Frame) -> None:
        self.over = True
        self._send(terminal)


def _holds_bytes(media: MediaUrn) -> bool:
    return not any(mark in media.tags for mark in _NO_BYTES)
