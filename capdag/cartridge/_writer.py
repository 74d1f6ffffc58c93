"""The one way out: frames onto the pipe, from any thread, in the order of their seq.

Law of the locks. A worker that writes holds `_lock` for as long as the pipe is full, which may be for ever when the
host has stopped. So the main thread never waits for it: what it has to say (heartbeat replies, refusals, grants) it
appends to `_posted` and then tries; if a worker holds the lock, that worker sends what was posted. And a thread that
writes holds no other lock that the main thread takes. Thus the main thread goes on reading whatever the pipe does.

Nobody waits for the lock in vain: posting appends before it tries, a holder looks again after it has let go.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from capdag.errors import LinkClosedError
from capdag.wire import Frame, MessageId, pack, view_of

from ._room import SURE, room_poll, wait_for_room

MAX_POSTED = 1 << 20
"""Bytes of its own that the main thread lets wait before it stops reading: a host that only writes is not served."""


class Flow:
    """The frames of one request that go out: their ids, their numbers and whether the terminal has gone.

    `next_seq` and `ended` belong to the thread that holds the writer's lock; before a worker has the request, to the
    main thread.
    """

    __slots__ = ("ended", "next_seq", "rid", "xid")

    def __init__(self, rid: MessageId, xid: MessageId | None) -> None:
        self.rid = rid
        self.xid = xid
        self.next_seq = 0
        self.ended = False


class _Between(NamedTuple):
    """A frame for a flow that a worker has: it gets its number when it is written."""

    flow: Flow
    frame: Frame
    size: int


_HIGHEST_SEQ = 2**64 - 1


class FrameWriter:
    """Writes frames to `fd`. `on_broken` is called, from any thread, when the far side has closed it; `on_relieved`,
    from a worker, when it has sent what the main thread posted and `main_waits` is set."""

    def __init__(
        self,
        fd: int,
        max_frame: int,
        on_broken: Callable[[], None],
        on_relieved: Callable[[], None] = lambda: None,
    ) -> None:
        self.fd = fd
        self.max_frame = max_frame
        self.stragglers = 0
        self._lock = Lock()
        self._posted: deque[bytes | _Between] = deque()
        # Two counters, each written by one side only: the main thread, the holder of the lock.
        self._bytes_posted = 0
        self._has_room = room_poll(fd)
        self._bytes_taken = 0
        self._stuck = False
        self._broken = False
        self._on_broken = on_broken
        self.on_relieved = on_relieved
        self.main_waits = False

    def send(self, flow: Flow, build: Callable[[int], bytes], *, terminal: bool = False) -> bool:
        """From a worker: number one frame of a flow, build its bytes and write them, waiting for room as needed.

        False if the flow's terminal has gone: the frame is suppressed and counted. Raises LinkClosedError when the
        host has closed the pipe, and what `build` raises (the number is then not used up).
        """
        with self._lock:
            if flow.ended:
                self.stragglers += 1
                return False
            if self._posted:
                self._write_posted()  # first: what was posted for this flow may take the next numbers
            data = build(flow.next_seq)
            flow.next_seq += 1
            flow.ended = terminal
            self._write(data)
        self._relieve()
        return True

    def send_frame(self, flow: Flow, frame: Frame, *, terminal: bool = False) -> bool:
        """From a worker: `send` for a frame that is built the general way."""

        def build(seq: int) -> bytes:
            frame.seq = seq
            return self.pack(frame)

        return self.send(flow, build, terminal=terminal)

    def send_unnumbered(self, frame: Frame) -> None:
        """From a worker: write a frame that has no seq (CREDIT)."""
        data = self.pack(frame)
        with self._lock:
            self._write_posted()
            self._write(data)
        self._relieve()

    def send_posted(self) -> None:
        """From a worker: write what the main thread has posted, waiting for room as needed. For frames so large that
        writing them by what a pipe surely has room for would take the main thread long."""
        with suppress(LinkClosedError), self._lock:
            self._write_posted()
        self._relieve()

    def pack(self, frame: Frame) -> bytes:
        """Return prefix and body. Raises LocalProtocolError for what cannot be encoded or is over max_frame."""
        return pack(view_of(frame), self.max_frame)

    def post(self, frame: Frame, flow: Flow | None = None, *, terminal: bool = False) -> None:
        """From the main thread: append a frame; never waits. With `flow`, number it: only while no worker has it."""
        if flow is None:
            self._append(self.pack(frame))
            return

        def build(seq: int) -> bytes:
            frame.seq = seq
            return self.pack(frame)

        self.post_built(flow, build, terminal=terminal)

    def post_built(self, flow: Flow, build: Callable[[int], bytes], *, terminal: bool = False) -> None:
        """From the main thread: number a frame of a flow that no worker has, build its bytes and append them. After
        the flow's terminal it is suppressed and counted. Raises what `build` raises (the number is not used up)."""
        if flow.ended:
            self.stragglers += 1
            return
        data = build(flow.next_seq)
        flow.next_seq += 1
        flow.ended = terminal
        self._append(data)

    def post_between(self, flow: Flow, frame: Frame) -> None:
        """From the main thread: append a frame for a flow that a worker may have; it is numbered when it is written,
        and suppressed if the flow's terminal has gone by then. Raises LocalProtocolError as `pack` does."""
        frame.seq = _HIGHEST_SEQ
        size = len(self.pack(frame))
        self._bytes_posted += size
        self._posted.append(_Between(flow, frame, size))

    def _append(self, data: bytes) -> None:
        self._bytes_posted += len(data)
        self._posted.append(data)

    def flush(self) -> None:
        """From the main thread: write what was posted as far as that needs no waiting."""
        self._stuck = False
        while self._posted and self._lock.acquire(blocking=False):
            try:
                self._stuck = not self._write_some()
            finally:
                self._lock.release()
            if self._stuck:
                return

    @property
    def wants_room(self) -> bool:
        """True while the main thread's frames wait for room and no worker is there to send them."""
        return self._stuck and bool(self._posted) and not self._broken

    @property
    def broken(self) -> bool:
        """True once the far side has closed it."""
        return self._broken

    @property
    def backlog(self) -> int:
        """Bytes posted that wait."""
        return self._bytes_posted - self._bytes_taken if self._posted else 0

    @property
    def overfull(self) -> bool:
        """True while more than MAX_POSTED bytes wait."""
        return self.backlog > MAX_POSTED

    @property
    def idle(self) -> bool:
        """True when nothing posted waits, or can ever go."""
        return self._broken or not self._posted

    def _write_some(self) -> bool:
        """Lock held, main thread. False if the pipe is full."""
        while self._posted:
            if not self._has_room(0):
                return False
            data = self._next_posted()
            try:
                written = os.write(self.fd, data[:SURE])
            except BlockingIOError:
                written = 0
            except OSError:
                self._break()
                return True
            self._bytes_taken += written
            if written < len(data):
                self._posted.appendleft(data[written:])
        return True

    def _write_posted(self) -> None:
        """Lock held, worker: what was posted."""
        while self._posted:
            posted = self._next_posted()
            self._write(posted)
            self._bytes_taken += len(posted)
        if self.main_waits:
            self.on_relieved()

    def _next_posted(self) -> bytes:
        """Lock held: what is to be written next, none for a frame that is suppressed. `_bytes_taken` counts it when it
        has been written."""
        posted = self._posted.popleft()
        if isinstance(posted, bytes):
            return posted
        flow, frame, size = posted
        data = b""
        if flow.ended:
            self.stragglers += 1
        else:
            frame.seq = flow.next_seq
            data = self.pack(frame)
            flow.next_seq += 1
        self._bytes_taken += size - len(data)
        return data

    def _write(self, data: bytes) -> None:
        if self._broken:
            raise _closed()
        try:
            written = self._write_once(data)
            if written < len(data):
                rest = memoryview(data)[written:]
                while rest:
                    rest = rest[self._write_once(rest) :]
        except OSError:
            self._break()
            raise _closed() from None

    def _write_once(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            wait_for_room(self.fd)
            return 0

    def _relieve(self) -> None:
        """Send what the main thread posted while this worker held the lock: it has not been able to."""
        while self._posted and self._lock.acquire(blocking=False):
            try:
                self._write_posted()
            finally:
                self._lock.release()

    def _break(self) -> None:
        self._broken = True
        self._posted.clear()
        self._on_broken()


def _closed() -> LinkClosedError:
    return LinkClosedError("the host has closed the cartridge's output: nothing can be sent any more")
