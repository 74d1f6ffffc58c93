"""A call that a handler makes of another cap: what both kinds of handler share. No waiting here.

The main thread feeds it with what comes back; the handler opens it, sends its arguments and reads its answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from capdag.errors import AttributionClass, CapdagError, LocalProtocolError, RemoteProtocolError
from capdag.urn import CapUrn, MediaUrn, UrnError
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
    LogRecord,
    MessageId,
    Received,
    failure_of,
    failure_of_end,
    read_log,
)

from ._argument import Argument
from ._errors import LONGEST_TEXT, CartridgeError, RequestCancelledError
from ._failing import text_of
from ._inbound import InputCore, Streams
from ._job import Job
from ._outbound import Head, OutCore
from ._writer import Flow

Progress = bool | tuple[float, float]
"""Whether the callee's progress goes on to the handler's own caller, or to which part of its bar."""

_ANSWERED = Failure("CANCELLED", AttributionClass.INTERNAL, "the call has ended: nobody reads its arguments any more")


class Answers(Streams):
    """The streams of an answer. Those that were not asked for are granted and thrown away."""

    direction = RESPONSE

    def __init__(
        self, cap: str, outputs: Sequence[str], make_input: Callable[[Streams, str], InputCore], *facts: Any
    ) -> None:
        super().__init__(*facts)
        self._cap = cap
        self._rules = AnswerRules(CapUrn.parse(cap))  # of the cap that was asked for: nobody tells a caller another
        self._ending: BaseException | None = None
        self.main = make_input(self, "main")
        self.named = {str(MediaUrn.parse(urn)): make_input(self, urn) for urn in outputs}

    def end_with(self, error: BaseException) -> None:
        """End with a failure that readers get when they have read all that came before it."""
        with self.changed:
            self._ending = error
            self.over = True
            self.changed.notify_all()

    def check_ending(self) -> None:
        """Raise what the call ended with."""
        if self._ending is not None:
            raise self._ending.with_traceback(None)

    @property
    def is_read(self) -> bool:
        """True once everything that was asked for has been read to its end."""
        return self.main.done and all(found.done for found in self.named.values())

    def discard(self) -> list[tuple[InStream, int]]:
        """Throw away what waits and what will come; returns the grants that are due for it."""
        grants = []
        with self.changed:
            self._by_stream.clear()
            for found in (self.main, *self.named.values()):
                found.done = True
                stream = found._stream
                if stream is None or stream.ended:
                    continue
                owed = found._owed + sum(owed for _, owed in found._values)
                found._values.clear()
                grants.append((stream, stream.window.consume(owed) + stream.window.flush()))
        return [(stream, credit) for stream, credit in grants if credit]

    def bad(self, media_urn: str, fault: str, detail: Mapping[str, object] | None = None) -> CartridgeError:
        """Return HANDLER_ERROR / internal, naming the output and the cap that was called."""
        text = f"output {media_urn!r} of the call of {self._cap} {fault}"
        return CartridgeError("HANDLER_ERROR", text, AttributionClass.INTERNAL, detail)

    def _choose(self, stream: InStream) -> InputCore | None:
        self._rules.start(stream.head)
        output = stream.head.output
        return self.main if output is None else self.named.get(str(MediaUrn.parse(output)))

    def _discard(self, stream: InStream, received: Received) -> int:
        return received.grant_now + stream.window.consume(received.owed) + stream.window.flush()


class CallCore:
    """One call, from REQ to terminal. `over` once nothing more comes or is wanted; `failure` is what it ended with;
    `came_back` if this process serves it itself."""

    def __init__(self, job: Job, cap: str, progress: Progress) -> None:
        self.job = job
        self.cap = cap
        self.flow = Flow(_new_rid(), None)
        self.over = self.came_back = False
        self.failure: BaseException | None = None
        self.answers: Answers
        self.outs: dict[str, OutCore] = {}
        self._low, self._high = (0.0, 1.0) if isinstance(progress, bool) else progress
        self._forwards = progress is not False

    @property
    def rid(self) -> MessageId:
        """The id of the request it makes."""
        return self.flow.rid

    def req(self) -> Frame:
        """Return the REQ, which names the request that the handler works for."""
        return Frame(
            FrameType.REQ,
            self.rid,
            content_type="application/cbor",
            meta={"parent_rid": self.job.flow.rid},
            payload=b"",
            cap=self.cap,
        )

    def sends(self, view: FrameView) -> bool:
        """Tell a frame of the body from one of the answer, for a call that came back to this process."""
        if view.stream_id is not None:
            return view.stream_id in self.outs
        return view.type is FrameType.END and not view.meta

    def finish(self, failure: BaseException | None) -> None:
        """Take note of the end: the answer's own, or `failure` at once."""
        if not self.over:
            self.over = True
            self.failure = failure
            if failure is not None:
                self.answers.fail(failure)
            self._close_outs()

    def take_end(self, view: FrameView) -> None:
        """From the main thread: the answer's END. Raises RemoteProtocolError if a stream is still open."""
        if (failure := failure_of_end(view.meta)) is not None:
            self._end_with(failure)
            return
        self.answers.end()
        self.finish(None)

    def take_err(self, view: FrameView) -> None:
        """From the main thread: the answer's ERR."""
        self._end_with(failure_of(view.meta))

    def _end_with(self, failure: Failure) -> None:
        self.over = True
        self.failure = failure.error()
        self.answers.end_with(self.failure)
        self._close_outs()

    def grant(self, stream_id: str | None, credit: int) -> bool:
        """From the main thread: take a grant for an argument. One without stream_id is for the only open one."""
        if stream_id is None:
            named = [out for out in self.outs.values() if out.is_open]
        else:
            named = [out for out in (self.outs.get(stream_id),) if out is not None]
        if len(named) != 1:
            return False
        named[0]._gate.grant(credit)  # type: ignore[attr-defined]
        return True

    def forwarded(self, view: FrameView) -> LogRecord | None:
        """Return what a LOG of the callee says to the handler's own caller."""
        try:
            record = read_log(view.meta)
        except RemoteProtocolError:
            return None
        if not self._forwards or record.progress is None:
            return None
        return record._replace(progress=self._low + record.progress * (self._high - self._low))

    def _close_outs(self) -> None:
        for out in self.outs.values():
            out._gate.close(RequestCancelledError(_ANSWERED))  # type: ignore[attr-defined]

    def reason_to_leave(self, error: BaseException | None) -> CancelReason:
        """Return why a call is given up by whoever leaves its block with `error`."""
        if self.job.stop_reason is not None:
            return reason_of(self.job.stop_reason)
        if error is None or not isinstance(error, Exception):
            return USER_CANCEL
        attribution = error.attribution if isinstance(error, CapdagError) else AttributionClass.INTERNAL
        text = f"the handler that called has failed: {text_of(error)}"
        return reason_of(Failure("ABORTED_COLLATERAL", attribution, text))


I_co = TypeVar("I_co", bound=InputCore, covariant=True)


class MadeCall(Generic[I_co]):
    """A call as a handler of either kind holds it. `_entered` once it has been made, `_left` once it is over."""

    def __init__(self, job: Job, cap: str, arguments: tuple[Argument, ...], progress: Progress) -> None:
        self._core = CallCore(job, check_call(cap, arguments, progress), progress)
        self._arguments = arguments
        self._unsent = len(arguments)
        self._entered = self._left = False

    @property
    def _answers(self) -> Answers:
        return self._core.answers

    @property
    def main(self) -> I_co:
        """The main output."""
        return cast("I_co", self._answers.main)

    def output(self, media_urn: str) -> I_co:
        """Return a named output that was asked for by `outputs=`. Raises LocalProtocolError for another."""
        found = self._answers.named.get(str(MediaUrn.parse(media_urn)))
        if found is None:
            asked = list(self._answers.named)
            raise LocalProtocolError(f"output {media_urn!r} was not asked for, only {asked}: give call(outputs=[…])")
        return cast("I_co", found)

    def _made_before(self) -> LocalProtocolError:
        return LocalProtocolError(f"the call of {self._core.cap!r} has been made: make a new one each time")


def reason_of(failure: Failure) -> CancelReason:
    """Return why a call is cancelled when its caller's request ends with `failure`: the same, as far as it surely fits
    a frame."""
    return CancelReason(failure.code[:LONGEST_TEXT], failure.attribution, failure.message[: 4 * LONGEST_TEXT])


def check_call(cap: str, arguments: Iterable[Argument], progress: Progress) -> str:
    """Return the cap URN in canonical form. Raises LocalProtocolError naming what is wrong with a call."""
    try:
        text = str(CapUrn.parse(cap))
        for argument in arguments:
            MediaUrn.parse(argument.media_urn)
    except UrnError as error:
        raise LocalProtocolError(f"call of {cap!r}: {error}") from None
    except AttributeError:
        raise LocalProtocolError(f"call of {cap!r}: arguments must be Argument(media_urn, data)") from None
    if not isinstance(progress, bool) and not 0.0 <= progress[0] <= progress[1] <= 1.0:
        raise LocalProtocolError(f"call of {cap!r}: progress must be True, False or two fractions, not {progress!r}")
    return text


def head_of_argument(number: int, argument: Argument) -> Head:
    """Return the head of an argument's stream."""
    return Head(f"arg-{number}", argument.media_urn, argument.media_urn, argument.is_sequence)


def _new_rid() -> bytes:
    """Return the bytes of a random UUID (version 4). The module `uuid` costs a cold start more than all of this."""
    data = bytearray(os.urandom(16))
    data[6] = data[6] & 0x0F | 0x40
    data[8] = data[8] & 0x3F | 0x80
    return bytes(data)
