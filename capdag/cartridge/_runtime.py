"""The loop of the synchronous shell: the main thread reads frames, workers run handlers.

The main thread polls stdin and a wake-up descriptor and waits for nothing else; `_writer` says how it is heard while
the pipe is full, `_session` what each frame means.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from capdag.errors import AttributionClass, ProtocolError, RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    CancelReason,
    FrameSplitter,
    FrameView,
    NetworkPolicy,
    encode_frame,
    hello_frame,
    inspect,
    read_hello,
)

from ._admission import Admission
from ._descriptors import Descriptors
from ._served import ServedCap
from ._session import RelayFrameError, Session
from ._workers import Workers
from ._writer import FrameWriter

_READ = 65_536
_LEAST_FRAME = 8192
"""Bytes that an ERR or LOG of the main thread surely fits in."""

_LAST_SECONDS = 2.0
"""What running handlers have, all together, once stdin has ended."""

_STDIN_ENDED = CancelReason("ABORTED", AttributionClass.ENVIRONMENT, "the host closed the cartridge's stdin")

EXIT_OK, EXIT_BROKEN = 0, 1
"""An ordinary end, which a malformed frame is too; a handshake that failed or a host that takes us for a relay."""


class Runtime:
    """One run of one cartridge over two descriptors. `on_policy` hears every POLICY, on the main thread."""

    def __init__(
        self,
        caps: Sequence[ServedCap],
        admission: Admission,
        manifest: bytes,
        descriptors: Descriptors,
        on_policy: Callable[[NetworkPolicy], None],
    ) -> None:
        self._caps = caps
        self._admission = admission
        self._manifest = manifest
        self._on_policy = on_policy
        self._read_fd = descriptors.read_fd
        self._woken_fd, self._wake_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        self._closing = False
        self._writer = FrameWriter(descriptors.write_fd, DEFAULT_LIMITS.max_frame, self._wake)
        self._workers = Workers(self._on_idle)
        self._splitter = FrameSplitter()
        self._session: Session | None = None

    def run(self) -> int:
        """Serve until stdin ends; returns the exit code. The process must then end at once: handlers may still run."""
        try:
            self._read_frames()
        except RelayFrameError as error:
            _complain(error)
            return EXIT_BROKEN
        except ProtocolError as error:
            _complain(error)
        if self._session is None:
            return EXIT_BROKEN
        self._finish(self._session)
        return EXIT_OK

    def _read_frames(self) -> None:
        """Take frames until stdin ends or nobody reads stdout any more. Raises ProtocolError for a broken stream."""
        poll = select.poll()
        poll.register(self._woken_fd, select.POLLIN)
        while True:
            # From a host that sends and never reads no more is taken; that it has gone still shows, as an error event.
            poll.register(self._read_fd, 0 if self._writer.overfull else select.POLLIN)
            poll.register(self._writer.fd, select.POLLOUT if self._writer.wants_room else 0)
            ready = dict(poll.poll())
            if self._woken_fd in ready or ready.get(self._writer.fd, 0) & ~select.POLLOUT:
                return
            if self._read_fd in ready and not self._read_once():
                return
            self._writer.flush()

    def _read_once(self) -> bool:
        """Take what one read gives; False at the end of stdin."""
        try:
            data = os.read(self._read_fd, _READ)
        except BlockingIOError:
            return True
        if not data:
            self._splitter.eof()
            if self._session is None:
                raise RemoteProtocolError("stdin ended before the host's HELLO")
            return False
        for body in self._splitter.feed(data):
            view = inspect(body)
            if self._session is None:
                self._session = self._shake_hands(view)
            else:
                self._session.take(view)
        return True

    def _shake_hands(self, view: FrameView) -> Session:
        """Answer the host's HELLO with our own, which has the limits already reduced. Raises RemoteProtocolError."""
        limits = DEFAULT_LIMITS.negotiate(read_hello(view))
        hello = hello_frame(limits, manifest=self._manifest, pools=self._admission.states())
        # Heartbeat replies hold as much as our HELLO, and refusals a little: what the main thread says must always fit.
        least = max(_LEAST_FRAME, len(encode_frame(hello)))
        if limits.max_frame < least:
            raise RemoteProtocolError(f"HELLO's max_frame of {limits.max_frame} is too small: at least {least}")
        self._writer.post(hello)
        self._writer.max_frame = self._splitter.max_frame = limits.read_limit
        return Session(self._caps, self._admission, limits, self._writer, self._workers, self._on_policy)

    def _finish(self, session: Session) -> None:
        """Stop everything and give the handlers until the deadline to return and their terminals to go out."""
        deadline = time.monotonic() + _LAST_SECONDS
        self._closing = True
        session.stop_all(_STDIN_ENDED)
        while True:
            self._writer.flush()
            left = deadline - time.monotonic()
            if left <= 0 or (self._workers.busy == 0 and self._writer.idle):
                return
            poll = select.poll()
            poll.register(self._woken_fd, select.POLLIN)
            if self._writer.wants_room:
                poll.register(self._writer.fd, select.POLLOUT)
            if (self._woken_fd, select.POLLIN) in poll.poll(left * 1000):
                os.read(self._woken_fd, _READ)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls to wake up already
            os.write(self._wake_fd, b"\0")

    def _on_idle(self) -> None:
        if self._closing:
            self._wake()


def _complain(error: Exception) -> None:
    sys.stderr.write(f"cartridge: {error}\n")
    sys.stderr.flush()
