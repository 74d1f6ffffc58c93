"""The one request of command mode, seen from its caller: frames in, frames out. The I/O is `_command_loop`'s."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from capdag.errors import AttributionClass
from capdag.wire import (
    DEFAULT_LIMITS,
    RESPONSE,
    USER_CANCEL,
    Failure,
    Frame,
    FrameType,
    FrameView,
    InStream,
    InStreams,
    Limits,
    LogRecord,
    NetworkPolicy,
    StreamHead,
    body_end_frame,
    cancel_frame,
    credit_frame,
    err_frame,
    failure_of,
    failure_of_end,
    policy_frame,
    read_cartridge_hello,
    read_log,
)

from ._command_arguments import GivenArgument
from ._command_sender import ArgumentSender

_RID = 1

OnValue = Callable[[StreamHead, Any, Mapping[str, Any]], None]
OnLog = Callable[[LogRecord], None]


class CommandCall:
    """Calls `cap` once the cartridge has said HELLO. `ended` is true after the terminal, `failure` what ERR told.

    What comes is given to `on_value` and `on_log` as it comes. `take`, `send` and `grant` give the frames that are due;
    `take` raises RemoteProtocolError when the cartridge breaks a rule. `command` is what starts the cartridge.
    """

    def __init__(
        self, cap: str, arguments: Sequence[GivenArgument], on_value: OnValue, on_log: OnLog, command: str
    ) -> None:
        self.ended = False
        self.failure: Failure | None = None
        self.senders: list[ArgumentSender] = []
        self._cap = cap
        self._arguments = arguments
        self._on_value = on_value
        self._on_log = on_log
        self._command = command
        self._streams = InStreams(DEFAULT_LIMITS.initial_credit)
        self._due: Counter[InStream] = Counter()
        self._begun = self._body_ended = False

    def take(self, view: FrameView) -> list[Frame]:
        """Take one frame of the cartridge's."""
        if view.type is FrameType.HELLO:
            return self._begin(read_cartridge_hello(view).limits)
        if view.type is FrameType.REQ:
            return [err_frame(view.id, self._alone(view.fields.get(10)))]
        if view.id == _RID:
            self._take_own(view)
        return []

    def _begin(self, limits: Limits) -> list[Frame]:
        self._begun = True
        self.senders = [ArgumentSender(_RID, f"arg-{n}", given, limits) for n, given in enumerate(self._arguments)]
        request = Frame(FrameType.REQ, _RID, cap=self._cap, content_type="application/cbor", payload=b"")
        return [policy_frame(NetworkPolicy.NO_TELEMETRY), request, *(sender.start() for sender in self.senders)]

    def _alone(self, cap: str | None) -> Failure:
        message = (
            f"cap {cap!r} cannot be called in command mode: there is no host, and so no other cartridge. Call it under"
            f" one: capdag call {shlex.quote(self._cap)} --cartridge {shlex.quote(self._command)}"
        )
        return Failure("NO_HANDLER", AttributionClass.ENVIRONMENT, message)

    def _take_own(self, view: FrameView) -> None:
        if view.type is FrameType.STREAM_START:
            self._streams.start(view)
        elif view.type is FrameType.CHUNK:
            self._take_chunk(view)
        elif view.type is FrameType.STREAM_END:
            self._streams.of(view).end(view)
        elif view.type is FrameType.LOG:
            self._on_log(read_log(view.meta))
        elif view.type is FrameType.CREDIT:
            for sender in self.senders:
                if sender.stream_id == view.stream_id:
                    sender.grant(view.fields[19])
        elif view.type is FrameType.ERR:
            self.ended, self.failure = True, failure_of(view.meta)
        elif view.type is FrameType.END:
            self._end(view.meta)

    def _end(self, meta: Mapping[str, Any]) -> None:
        self.failure = failure_of_end(meta)
        if self.failure is None:
            self._streams.check_ended()
        self.ended = True

    def _take_chunk(self, view: FrameView) -> None:
        stream = self._streams.of(view)
        received = stream.chunk(view)
        for value in received.values:
            self._on_value(stream.head, value, received.meta)
        self._due[stream] += received.grant_now + stream.window.consume(received.owed)

    def send(self) -> Iterator[Frame]:
        """Give what the arguments can send now, and the body's END after the last of them."""
        yield from chain.from_iterable(sender.frames() for sender in self.senders)
        if self._begun and not self._body_ended and all(sender.ended for sender in self.senders):
            self._body_ended = True
            yield body_end_frame(_RID)

    def grant(self) -> Iterator[Frame]:
        """Give the grants for all that has come so far: it has been used."""
        due, self._due = self._due, Counter()
        for stream, credit in due.items():
            credit += stream.window.flush()
            if credit and not stream.ended:
                yield credit_frame(_RID, stream.head.stream_id, credit, RESPONSE)

    def cancel(self) -> Frame:
        """Return the CANCEL of the person who called."""
        return cancel_frame(_RID, USER_CANCEL)
