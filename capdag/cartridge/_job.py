"""One request as the runtime sees it: its streams, why it must stop, and its one terminal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Lock, RLock
from typing import TYPE_CHECKING, Any

from capdag.errors import AttributionClass, LinkClosedError
from capdag.wire import Failure, Frame, Limits, LogRecord, end_frame, err_frame, log_frame

from ._arguments import Arguments
from ._errors import RequestCancelledError, show_traceback
from ._failing import ever_plainer, failure_of_error
from ._input import Input
from ._output import Output
from ._outputs import Outputs
from ._served import ServedCap
from ._writer import Flow, FrameWriter

if TYPE_CHECKING:
    from capdag.urn import MediaUrn

    from ._call_core import CallCore
    from ._feeds import FeedQueue
    from ._selector import Bad, Selector

_ENDED = Failure("CANCELLED", AttributionClass.INTERNAL, "the request has ended: nothing can be read or written")

Callback = Callable[[], object]

OpenFeed = Callable[[Callable[[], None], "MediaUrn", "Selector", "Bad"], "FeedQueue"]
"""Opens a feed whose items wake a reader by the first argument."""


class Job:
    """A request from REQ to terminal, whatever its handler is. The main thread feeds it.

    A job is stopped when it is cancelled or when its sender breaks a rule: reading and writing fail from then on, the
    handler runs until it returns, and the reason decides the terminal.
    """

    arguments: Arguments
    outputs: Outputs[Any]

    def __init__(self, cap: ServedCap, asked: str, flow: Flow, limits: Limits, writer: FrameWriter) -> None:
        self.cap = cap
        self.asked = asked
        self.flow = flow
        self.limits = limits
        self.writer = writer
        self.stop_reason: Failure | None = None
        self.fraction = 0.0
        self._settled = False
        self._lock = Lock()
        self._calls: set[CallCore] = set()

    def stop(self, reason: Failure) -> bool:
        """Make the job end with `reason`. False if its outcome was decided before: the first reason or the terminal
        stands. What is to be told of it is told later: see `call_back`."""
        with self._lock:
            if self._settled or self.stop_reason is not None:
                return False
            self.stop_reason = reason
        error = RequestCancelledError(reason)
        self.arguments.fail(error)
        self.outputs.close(error)
        return True

    def add_call(self, call: CallCore) -> None:
        """Note a call that the handler makes. Raises RequestCancelledError if the job is over."""
        with self._lock:
            if self.stop_reason is not None or self._settled:
                raise RequestCancelledError(self.stop_reason or _ENDED)
            self._calls.add(call)

    def drop_call(self, call: CallCore) -> None:
        """Forget a call that has ended."""
        with self._lock:
            self._calls.discard(call)

    def calls(self) -> list[CallCore]:
        """Return the calls that are under way."""
        with self._lock:
            return list(self._calls)

    def log(self, record: LogRecord) -> None:
        """Send a LOG. Nothing is sent after the terminal."""
        if record.progress is not None:
            self.fraction = record.progress
        self._send(log_frame(self.flow.rid, record, xid=self.flow.xid))

    def pass_on(self, record: LogRecord) -> None:
        """From the main thread: send a LOG that somebody else has made."""
        raise NotImplementedError

    def send_unnumbered(self, frame: Frame) -> None:
        """Send a frame that has no seq (CREDIT, CANCEL), from the handler's side."""
        raise NotImplementedError

    def _settle(self, failure: Failure | None, on_settled: Callable[[Job], None]) -> bool:
        """Decide the outcome, once, and send the terminal. `on_settled` is called between the two, so that whoever
        sees the terminal finds the place free. False if it was decided before."""
        with self._lock:
            if self._settled:
                return False
            self._settled = True
            failure = self.stop_reason or failure
        self.arguments.fail(RequestCancelledError(_ENDED))
        self.outputs.close(RequestCancelledError(_ENDED))
        on_settled(self)
        with suppress(LinkClosedError):
            self._send_terminal(failure)
        return True

    def _send_terminal(self, failure: Failure | None) -> None:
        rid, xid = self.flow.rid, self.flow.xid
        if failure is None:
            self._send(end_frame(rid, xid=xid), terminal=True)
            return
        for plainer in ever_plainer(failure):
            try:
                self._send(err_frame(rid, plainer, xid=xid), terminal=True)
            except LinkClosedError:
                raise
            except Exception:  # noqa: BLE001, S112 - what an author has put into it may break anything in its own way
                continue
            return

    def _send(self, frame: Frame, *, terminal: bool = False) -> None:
        """Send a frame of the job's flow, from the handler's side."""
        raise NotImplementedError


class ThreadJob(Job):
    """A job whose handler is a plain function: `run` is the work of one worker."""

    outputs: Outputs[Output]

    def __init__(
        self, cap: ServedCap, asked: str, flow: Flow, limits: Limits, writer: FrameWriter, open_feed: OpenFeed
    ) -> None:
        super().__init__(cap, asked, flow, limits, writer)
        self.changed = Condition()
        self.outputs = Outputs(cap, lambda head: Output(head, flow, limits, writer))
        # A caller that waits for an answer before it says more would wait for ever for bytes that are held back.
        self.arguments = Arguments(
            cap,
            lambda source, arg: Input(source, arg.media_urn, is_required=arg.is_required),
            lambda *asked: open_feed(self.wake, *asked),
            self.changed,
            flow,
            limits.initial_credit,
            writer.send_unnumbered,
            self.outputs.flush_within_credit,
        )
        # Held while callbacks run, so that the terminal waits for them: what they stop may be another's after it.
        self._callbacks_lock = RLock()
        self._callbacks: list[Callback] = []
        self._returned = False

    def wake(self) -> None:
        """Have the reader of a feed look again."""
        with self.changed:
            self.changed.notify_all()

    def on_cancel(self, callback: Callback) -> None:
        """Register a callback for when the job is stopped; if it is already, call it now, in this thread."""
        with self._callbacks_lock:
            if self._returned:
                return
            if self.stop_reason is None:
                self._callbacks.append(callback)
                return
            callback()

    def call_back(self) -> None:
        """Call what was registered, once, in a worker of its own: a callback may take its time, the main thread may
        not."""
        with self._callbacks_lock:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                try:
                    callback()
                except BaseException:  # noqa: BLE001 - the author's code; the others must be called, and the request end
                    show_traceback()

    def run(self, work: Callable[[], object], on_settled: Callable[[Job], None]) -> None:
        """Do the handler's work and send the terminal. Never raises."""
        failure = None if self.stop_reason is not None else self._failure_of(work)
        with self._callbacks_lock:
            if self.stop_reason is not None:  # the handler may have seen that before the callbacks' own worker ran
                self.call_back()
            self._returned = True
        self._settle(failure, on_settled)

    def _failure_of(self, work: Callable[[], object]) -> Failure | None:
        try:
            work()
            for facts, output in self.outputs.declared():
                output.finish(is_required=facts.is_required)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its request, not the process
            return failure_of_error(error)
        return None

    def pass_on(self, record: LogRecord) -> None:
        """From the main thread: send a LOG when the pipe has room, between what the handler sends."""
        self.writer.post_between(self.flow, log_frame(self.flow.rid, record, xid=self.flow.xid))

    def send_unnumbered(self, frame: Frame) -> None:
        """Send a frame that has no seq, waiting for room."""
        self.writer.send_unnumbered(frame)

    def _send(self, frame: Frame, *, terminal: bool = False) -> None:
        self.writer.send_frame(self.flow, frame, terminal=terminal)
