"""What a plain handler answers with: output streams that block for credit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Condition, Lock
from typing import Any

from capdag.errors import CapdagError
from capdag.wire import Limits, SendWindow

from ._outbound import Head, OutCore, State
from ._writer import Flow, FrameWriter


class Gate:
    """The credit of one stream, between the worker that sends and the main thread that hears of grants."""

    def __init__(self, initial: int) -> None:
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._window = SendWindow(initial)
        self._closed: CapdagError | None = None

    def take(self) -> None:
        """Use one credit, waiting for it. Raises the error the gate was closed with."""
        with self._lock:
            while self._closed is not None or not self._window.take():
                self.check()
                self._changed.wait()

    @property
    def remaining(self) -> int:
        """Credits that can be taken without waiting."""
        return 0 if self._closed is not None else self._window.remaining

    def check(self) -> None:
        """Raise the error the gate was closed with, if it was."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    def grant(self, credit: int) -> None:
        """Add a grant."""
        with self._lock:
            self._window.grant(credit)
            self._changed.notify()

    def close(self, error: CapdagError) -> None:
        """Fail whoever waits and whoever comes."""
        with self._lock:
            self._closed = self._closed or error
            self._changed.notify_all()


class Output(OutCore):
    """One output stream. Every method waits for credit as needed and may be called from any thread; all raise
    RequestCancelledError once the request is over."""

    def __init__(self, head: Head, flow: Flow, limits: Limits, writer: FrameWriter) -> None:
        super().__init__(head, flow, limits)
        self._writer = writer
        self._gate = Gate(limits.initial_credit)
        self._lock = Lock()

    def open(self, meta: Mapping[str, Any] | None = None, *, unbounded: bool = False) -> None:
        """Send STREAM_START, with meta for the whole stream if given. Writing opens too. A second time raises
        LocalProtocolError if it says something, and does nothing otherwise.

        `unbounded` says that the stream has no end of its own, so that nobody waits for the whole of it.
        """
        with self._lock:
            self._check_new(wanted=unbounded or meta is not None)
            self._open(meta, unbounded=unbounded)

    def write(self, value: Any) -> None:
        """Write to a scalar output: bytes (joined with their neighbours), text, a number, a bool, None, a list
        (element by element) or a map (pair by pair). Raises LocalProtocolError for an output of items."""
        with self._lock:
            self._require(sequence=False)
            self._open()
            if isinstance(value, (bytes, bytearray, memoryview)):
                value = self._held.add(value, time.monotonic())
            else:
                self._send_pieces(self._held.take())
            self._send_pieces(value)

    def flush(self) -> None:
        """Send bytes that `write` holds back for company."""
        with self._lock:
            self._gate.check()
            self._send_pieces(self._held.take())

    def flush_within_credit(self) -> None:
        """Send bytes that `write` holds back, if that needs no waiting."""
        if self._held and self._lock.acquire(blocking=False):
            try:
                if self._gate.remaining * self._max_piece >= len(self._held):
                    self._send_pieces(self._held.take())
            finally:
                self._lock.release()

    def item(self, item: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Write one item, with its meta if given. Raises LocalProtocolError for a scalar output."""
        with self._lock:
            self._require(sequence=True)
            self._open()
            first, *others = self._fragments(item)
            if meta is None:
                self._send(first)
            else:
                described = self._described(first, meta)
                self._gate.take()
                self._writer.send_frame(self._flow, described)
                self._chunks += 1
            for payload in others:
                self._send(payload)

    def _open(self, meta: Mapping[str, Any] | None = None, *, unbounded: bool = False) -> None:
        self._gate.check()
        if self._state is State.OPEN:
            return
        start = self._start_frame(meta, unbounded=unbounded)
        if start is not None:
            self._writer.send_frame(self._flow, start)

    def _send_pieces(self, value: Any) -> None:
        for payload in self._pieces(value):
            self._send(payload)

    def _send(self, payload: bytes) -> None:
        build = self._chunk(payload)
        self._gate.take()
        self._writer.send(self._flow, build)
        self._chunks += 1

    def finish(self, *, is_required: bool = True) -> None:
        """Send what is held and STREAM_END. For the runtime: a stream that was never written is opened first, if it
        is required."""
        with self._lock:
            if self._state is State.NEW and not is_required:
                return
            self._open()
            self._send_pieces(self._held.take())
            self._writer.send_frame(self._flow, self._end_frame())
