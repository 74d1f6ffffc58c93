"""The handshake, and the loop of the synchronous shell: the main thread reads frames, workers run handlers.

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
from typing import TYPE_CHECKING

from capdag.errors import AttributionClass, ProtocolError, RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    CancelReason,
    FrameSplitter,
    FrameView,
    Limits,
    NetworkPolicy,
    encode_frame,
    hello_frame,
    inspect,
    read_hello,
)

from ._admission import Admission
from ._descriptors import Descriptors
from ._errors import RelayFrameError
from ._selector import LiveFeed
from ._served import ServedCap
from ._workers import Workers
from ._writer import FrameWriter

if TYPE_CHECKING:
    from ._session import Session, Shell

READ_SIZE = 65_536
_LEAST_FRAME = 8192
"""Bytes that an ERR or LOG of the main thread surely fits in."""

LAST_SECONDS = 2.0
"""What running handlers have, all together, once stdin has ended."""

_STDIN_ENDED = CancelReason("ABORTED", AttributionClass.ENVIRONMENT, "the host closed the cartridge's stdin")

EXIT_OK, EXIT_BROKEN = 0, 1
"""An ordinary end, which a malformed frame is too; a handshake that failed or a host that takes us for a relay."""


class Runtime:
    """One run of one cartridge over two descriptors. `on_policy` hears every POLICY, on the main thread.

    Up to HELLO it is the same whatever the handlers are, and what only requests need has not been imported; then a loop
    of its own takes over if any of them is async.
    """

    polls = True
    """False where descriptors cannot be polled: `fetch`, in a thread, then waits for what `read_once` takes."""

    def __init__(
        self,
        caps: Sequence[ServedCap],
        feeds: Sequence[LiveFeed],
        admission: Admission,
        manifest: bytes,
        descriptors: Descriptors,
        on_policy: Callable[[NetworkPolicy], None],
    ) -> None:
        self._caps = caps
        self.feeds = feeds
        self._has_tasks = any(cap.is_async for cap in caps) or any(feed.is_async for feed in feeds)
        self._admission = admission
        self._manifest = manifest
        self._on_policy = on_policy
        self.read_fd = descriptors.read_fd
        self._open_news()
        self._closing = False
        self.on_wake: Callable[[], None] = self._wake
        self.writer = FrameWriter(descriptors.write_fd, DEFAULT_LIMITS.max_frame, lambda: self.on_wake())
        self.workers = Workers(self._on_idle)
        self._splitter = FrameSplitter()
        self._limits: Limits | None = None
        self._early: list[FrameView] = []
        self._session: Session | None = None

    def _open_news(self) -> None:
        self._woken_fd, self._wake_fd = os.pipe()
        if sys.platform != "win32":
            os.set_blocking(self._wake_fd, False)

    def run(self) -> int:
        """Serve until stdin ends; returns the exit code. The process must then end at once: handlers may still run."""
        code = self._serve_until(lambda: self._limits is not None)
        if code is not None:
            return code
        if self._has_tasks:
            from ._tasks import serve_with_tasks

            serve_with_tasks(self)
        from ._threads import ThreadShell

        self.begin(ThreadShell(self.workers, self.writer, self.feeds))
        code = self._serve_until(lambda: False)
        assert code is not None
        if code == EXIT_OK:
            self._finish()
        return code

    def begin(self, shell: Shell) -> None:
        """Start the session, with the frames that came along with HELLO."""
        from ._session import Session

        assert self._limits is not None
        self._session = Session(self._caps, self._admission, self._limits, self.writer, shell, self._on_policy)
        for view in self._early:
            self._session.take(view)
        self._early.clear()

    def _serve_until(self, done: Callable[[], bool]) -> int | None:
        """Take frames until `done` (None) or until the end (the exit code): stdin's, or nobody reads stdout."""
        if sys.platform == "win32":
            raise NotImplementedError("pipes cannot be polled here: ThreadedRuntime")
        else:  # noqa: RET506 - type checkers know which branch is for which system
            poll = select.poll()
            poll.register(self._woken_fd, select.POLLIN)
            while not done():
                # From a host that sends and never reads no more is taken; that it has gone still shows, as an error.
                poll.register(self.read_fd, 0 if self.writer.overfull else select.POLLIN)
                poll.register(self.writer.fd, select.POLLOUT if self.writer.wants_room else 0)
                ready = dict(poll.poll())
                if self._woken_fd in ready or ready.get(self.writer.fd, 0) & ~select.POLLOUT:
                    return self._end_code
                if self.read_fd in ready and (code := self.read_once()) is not None:
                    return code
                self.writer.flush()
            return None

    @property
    def _end_code(self) -> int:
        return EXIT_BROKEN if self._limits is None else EXIT_OK

    def read_once(self) -> int | None:
        """Take what one read gives. At the end of stdin, or of what can be understood, returns the exit code."""
        try:
            data = self._read()
            if data:
                for body in self._splitter.feed(data):
                    self._take(inspect(body))
                return None
            self._splitter.eof()
            if self._limits is None:
                raise RemoteProtocolError("stdin ended before the host's HELLO")
        except BlockingIOError:
            return None
        except RelayFrameError as error:
            _complain(error)
            return EXIT_BROKEN
        except ProtocolError as error:
            _complain(error)
        return self._end_code

    def _read(self) -> bytes:
        return os.read(self.read_fd, READ_SIZE)

    def fetch(self) -> None:
        """Wait for what the next `read_once` takes, where `polls` is False."""
        raise NotImplementedError

    def _take(self, view: FrameView) -> None:
        if self._session is not None:
            self._session.take(view)
        elif self._limits is not None:
            self._early.append(view)
        else:
            self._limits = self._shake_hands(view)

    def _shake_hands(self, view: FrameView) -> Limits:
        """Answer the host's HELLO with our own, which has the limits already reduced. Raises RemoteProtocolError."""
        limits = DEFAULT_LIMITS.negotiate(read_hello(view))
        hello = hello_frame(limits, manifest=self._manifest, pools=self._admission.states())
        # Heartbeat replies hold as much as our HELLO, and refusals a little: what the main thread says must always fit.
        least = max(_LEAST_FRAME, len(encode_frame(hello)))
        if limits.max_frame < least:
            raise RemoteProtocolError(f"HELLO's max_frame of {limits.max_frame} is too small: at least {least}")
        self.writer.post(hello)
        self.writer.max_frame = self._splitter.max_frame = limits.read_limit
        return limits

    def stop_all(self) -> None:
        """Cancel every request: what handlers have left is `LAST_SECONDS`."""
        self._closing = True
        if self._session is not None:
            self._session.stop_all(_STDIN_ENDED)

    def _finish(self) -> None:
        """Stop everything and give the handlers until the deadline to return and their terminals to go out."""
        deadline = time.monotonic() + LAST_SECONDS
        self.stop_all()
        while True:
            self._flush()
            left = deadline - time.monotonic()
            if left <= 0 or (self.workers.busy == 0 and self.writer.idle):
                return
            self._await_news(left)

    def _flush(self) -> None:
        self.writer.flush()

    def _await_news(self, seconds: float) -> None:
        """Wait until a handler has returned or there is room for what is posted."""
        if sys.platform == "win32":
            raise NotImplementedError("pipes cannot be polled here: ThreadedRuntime")
        else:  # noqa: RET506 - type checkers know which branch is for which system
            poll = select.poll()
            poll.register(self._woken_fd, select.POLLIN)
            if self.writer.wants_room:
                poll.register(self.writer.fd, select.POLLOUT)
            if (self._woken_fd, select.POLLIN) in poll.poll(seconds * 1000):
                os.read(self._woken_fd, READ_SIZE)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls to wake up already
            os.write(self._wake_fd, b"\0")

    def _on_idle(self) -> None:
        if self._closing:
            self.on_wake()


def _complain(error: Exception) -> None:
    sys.stderr.write(f"cartridge: {error}\n")
    sys.stderr.flush()
