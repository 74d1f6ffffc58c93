"""The calls that are under way, and what the frames that come back for them mean. On the main thread, but for opening
and leaving."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock

from capdag.errors import AttributionClass, LinkClosedError, LocalProtocolError, ProtocolError
from capdag.wire import (
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    MessageId,
    ReleasedRing,
    cancel_frame,
)

from ._call_core import CallCore, reason_of
from ._errors import CartridgeError, RequestCancelledError
from ._job import Job
from ._writer import FrameWriter

MAX_CALLS = 1024
"""Calls that one cartridge has under way at a time."""


class CallTable:
    """Every call that has been opened and has not ended. `lock` also guards `released`."""

    def __init__(self, lock: Lock, released: ReleasedRing, writer: FrameWriter) -> None:
        self._lock = lock
        self._released = released
        self._writer = writer
        self._calls: dict[MessageId, CallCore] = {}
        self._takers: dict[FrameType, Callable[[CallCore, FrameView], Frame | None]] = {
            FrameType.STREAM_START: _take_stream,
            FrameType.CHUNK: _take_stream,
            FrameType.STREAM_END: _take_stream,
            FrameType.END: self._take_end,
            FrameType.ERR: self._take_err,
        }

    def open(self, call: CallCore) -> None:
        """From a handler: note a call before its REQ goes out. Raises RequestCancelledError if its request is over,
        CartridgeError TABLE_FULL at the limit."""
        call.job.add_call(call)
        with self._lock:
            full = len(self._calls) >= MAX_CALLS
            if not full:
                self._calls[call.rid] = call
        if full:
            call.job.drop_call(call)
            message = f"{MAX_CALLS} calls are under way, the most this cartridge makes: retry later"
            raise CartridgeError("TABLE_FULL", message, AttributionClass.RESOURCE, {"limit": MAX_CALLS})

    def leave(self, call: CallCore) -> bool:
        """From any thread: forget a call. False if it has been forgotten."""
        with self._lock:
            left = self._calls.pop(call.rid, None) is not None
            if left:
                self._released.add(call.rid)
        call.job.drop_call(call)
        return left

    def find(self, rid: MessageId) -> CallCore | None:
        """Return the call under way with this id, or None."""
        return self._calls.get(rid)

    def take(self, call: CallCore, view: FrameView) -> None:
        """Take a frame of the answer. An answer that breaks a rule ends the call: CANCEL, and the reader is told."""
        try:
            credit = self._takers[view.type](call, view)
        except (CartridgeError, ProtocolError) as error:
            reason = reason_of(Failure(error.code, error.attribution, str(error.args[0])))
            self.cancel(call, reason, reason.failure().error())
            return
        if credit is not None:
            self._writer.post(credit)

    def cancel(
        self, call: CallCore, reason: CancelReason, error: Exception | None = None, *, force_kill: bool = False
    ) -> None:
        """End a call now, with CANCEL; its reader gets `error`, or that the request is cancelled."""
        if self.leave(call):
            self._writer.post(cancel_frame(call.rid, reason, force_kill=force_kill))
        call.finish(error or RequestCancelledError(reason.failure()))

    def cancel_all(self, job: Job, reason: CancelReason, *, force_kill: bool = False) -> None:
        """End every call that a request's handler has made."""
        for call in job.calls():
            self.cancel(call, reason, force_kill=force_kill)

    def abandon_all(self, job: Job) -> None:
        """From a handler's side: end the calls that it has left behind when it returned."""
        for call in job.calls():
            reason = call.reason_to_leave(None)
            if self.leave(call):
                with suppress(LinkClosedError):
                    job.send_unnumbered(cancel_frame(call.rid, reason))
            call.finish(RequestCancelledError(reason.failure()))

    def forward(self, call: CallCore, view: FrameView) -> None:
        """Pass progress on to the caller of the handler that called."""
        record = call.forwarded(view)
        if record is not None and call.job.stop_reason is None:
            with suppress(LocalProtocolError):  # it filled a frame, and ours has a routing id besides: it is lost
                call.job.pass_on(record)

    def _take_end(self, call: CallCore, view: FrameView) -> None:
        call.take_end(view)
        self.leave(call)

    def _take_err(self, call: CallCore, view: FrameView) -> None:
        call.take_err(view)
        self.leave(call)


def _take_stream(call: CallCore, view: FrameView) -> Frame | None:
    return call.answers.take(view)
