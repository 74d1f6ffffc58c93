"""One request as the runtime sees it: its streams, why it must stop, and its one terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock

from capdag.errors import AttributionClass, LinkClosedError, LocalProtocolError, RequestFailedError
from capdag.wire import Failure, Limits, LogRecord, end_frame, err_frame, log_frame

from ._errors import RequestCancelledError
from ._input import Arguments
from ._output import Outputs
from ._served import ServedCap
from ._writer import Flow, FrameWriter

_LONGEST_MESSAGE = 4096
"""Characters of an exception's text that go into its ERR; all of it is on stderr."""

_ENDED = Failure("CANCELLED", AttributionClass.INTERNAL, "the request has ended: nothing can be read or written")

Callback = Callable[[], object]


class Job:
    """A request from REQ to terminal. The main thread feeds it; `run` is the work of one worker.

    A job is stopped when it is cancelled or when its sender breaks a rule: reading and writing fail from then on, the
    handler runs until it returns, and the reason decides the terminal.
    """

    def __init__(self, cap: ServedCap, asked: str, flow: Flow, limits: Limits, writer: FrameWriter) -> None:
        self.cap = cap
        self.asked = asked
        self.flow = flow
        self.outputs = Outputs(cap, flow, limits, writer)
        # A caller that waits for an answer before it says more would wait for ever for bytes that are held back.
        self.arguments = Arguments(
            cap, flow, limits.initial_credit, writer.send_unnumbered, self.outputs.flush_within_credit
        )
        self.stop_reason: Failure | None = None
        self._writer = writer
        self._settled = False
        self._lock = Lock()
        # Held while callbacks run, so that the terminal waits for them: what they stop may be another's after it.
        self._callbacks_lock = RLock()
        self._callbacks: list[Callback] | None = []

    def stop(self, reason: Failure) -> bool:
        """Make the job end with `reason`. False if its outcome was decided before: the first reason or the terminal
        stands. Callbacks are not called: see `call_back`."""
        with self._lock:
            if self._settled or self.stop_reason is not None:
                return False
            self.stop_reason = reason
        error = RequestCancelledError(reason)
        self.arguments.fail(error)
        self.outputs.close(error)
        return True

    def on_cancel(self, callback: Callback) -> None:
        """Register a callback for when the job is stopped; if it is already, call it now, in this thread."""
        with self._callbacks_lock:
            if self._callbacks is None:
                return
            if self.stop_reason is None:
                self._callbacks.append(callback)
                return
            callback()

    def call_back(self) -> None:
        """Call what was registered, in a worker of its own: a callback may take its time, the main thread may not."""
        with self._callbacks_lock:
            for callback in self._callbacks or ():
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the author's code; the others must still be called
                    _show_traceback()

    def log(self, record: LogRecord) -> None:
        """Send a LOG. Nothing is sent after the terminal."""
        self._writer.send_frame(self.flow, log_frame(self.flow.rid, record, xid=self.flow.xid))

    def run(self, work: Callable[[], object], on_settled: Callable[[Job], None]) -> None:
        """Do the handler's work and send the terminal. `on_settled` is called when the outcome is decided and before
        the terminal goes out, so that whoever sees the terminal finds the place free. Never raises."""
        failure = None if self.stop_reason is not None else self._failure_of(work)
        with self._callbacks_lock:
            self._callbacks = None
        with self._lock:
            self._settled = True
            failure = self.stop_reason or failure
        self.arguments.fail(RequestCancelledError(_ENDED))
        self.outputs.close(RequestCancelledError(_ENDED))
        on_settled(self)
        with suppress(LinkClosedError):
            self._send_terminal(failure)

    def _failure_of(self, work: Callable[[], object]) -> Failure | None:
        try:
            work()
            self.outputs.finish()
        except RequestFailedError as error:
            return Failure(error.code, error.attribution, error.message, error.detail)
        except (RequestCancelledError, LinkClosedError) as error:
            return Failure(error.code, error.attribution, str(error))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises ends its request, not the process
            _show_traceback()
            text = str(error)[:_LONGEST_MESSAGE]
            name = type(error).__name__
            return Failure("HANDLER_ERROR", AttributionClass.INTERNAL, f"{name}: {text}" if text else name)
        return None

    def _send_terminal(self, failure: Failure | None) -> None:
        rid, xid = self.flow.rid, self.flow.xid
        if failure is None:
            self._writer.send_frame(self.flow, end_frame(rid, xid=xid), terminal=True)
            return
        try:
            self._writer.send_frame(self.flow, err_frame(rid, failure, xid=xid), terminal=True)
        except LocalProtocolError as error:
            short = Failure(failure.code[:64], failure.attribution, f"the failure itself cannot be sent: {error}")
            self._writer.send_frame(self.flow, err_frame(rid, short, xid=xid), terminal=True)


def _show_traceback() -> None:
    kind, error, trace = sys.exc_info()
    assert kind is not None
    assert error is not None
    sys.__excepthook__(kind, error, trace)
