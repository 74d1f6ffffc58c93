"""A call of command mode as a process: pipes, stdin, stdout and signals.

The cartridge's runtime runs in a thread, just as under a host: the same frames go through two pipes. The main thread
is all the host it has. It polls what it can read and waits nowhere else; what it may read follows from credit and from
room on stdout, so that nothing piles up here. No descriptor that came from outside is made non-blocking.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread

from capdag.errors import CapdagError, ConfigError, ProtocolError, RemoteProtocolError
from capdag.wire import DEFAULT_LIMITS, Frame, FrameSplitter, SeqAssigner, hello_frame, inspect, pack, view_of

from ._children import kill_children
from ._command_call import CommandCall
from ._descriptors import Descriptors
from ._room import SURE

_READ = 65_536
_PATIENCE = 5.0
"""Seconds that a handler has to end a call that nobody wants any more."""

if sys.platform == "win32":  # where `_wait` says what is missing
    UNREAD = 1
    _ROOM = 0
    _ENDING = (signal.SIGINT, signal.SIGTERM)
else:
    UNREAD = 128 + signal.SIGPIPE
    """The exit code when nobody reads the answer."""
    _ROOM = select.POLLOUT
    _ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

RunRuntime = Callable[[Descriptors], object]


class StoppedError(CapdagError):
    """The call was given up: `exit_code` is the shell's for it. Without a message there is nothing to say."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CommandLoop:
    """Moves one call along until its terminal has come and its answer is written to `output_fd`."""

    def __init__(self, call: CommandCall, run_runtime: RunRuntime, output_fd: int) -> None:
        self._call = call
        self._run_runtime = run_runtime
        self._output_fd = output_fd
        self._output_is_file = stat.S_ISREG(os.fstat(output_fd).st_mode)
        self._unwritten: deque[memoryview] = deque()
        self._splitter = FrameSplitter()
        self._numbers = SeqAssigner()
        self._stopped: CapdagError | None = None
        self._deadline: float | None = None

    def write(self, data: bytes) -> None:
        """Queue a piece of the answer."""
        if data and self._stopped is None:
            self._unwritten.append(memoryview(data))

    def run(self) -> None:
        """Run the call. Raises RequestFailedError for the ERR it ended with, StoppedError if it was given up,
        ConfigError for an argument that cannot be read and ProtocolError for a runtime that breaks its rules."""
        to_cartridge, self._frames_out = os.pipe()
        self._frames_in, from_cartridge = os.pipe()
        Thread(target=self._serve, args=(Descriptors(to_cartridge, from_cartridge),), daemon=True).start()
        with _signal_fd() as self._signals:
            self._send([hello_frame(DEFAULT_LIMITS)])
            while not self._done:
                self._step()
        # The pipe stays open to the end of the process: where its own would end the runtime, that ends the process.
        if self._stopped is not None:
            raise self._stopped
        if self._call.failure is not None:
            raise self._call.failure.error()

    def _serve(self, descriptors: Descriptors) -> None:
        try:
            self._run_runtime(descriptors)
        finally:
            os.close(descriptors.write_fd)

    @property
    def _done(self) -> bool:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return True
        return self._call.ended and not self._unwritten

    def _step(self) -> None:
        """Wait until something can be done, and do it."""
        ready = self._wait()
        if self._signals in ready:
            number = os.read(self._signals, 1)[0]
            self._stop(StoppedError("interrupted: the request was cancelled", 128 + number))
        if self._output_fd in ready:
            self._write_some(ready[self._output_fd])
        if self._frames_in in ready:
            self._read_frames()
        if self._stopped is None:
            self._read_arguments(ready)
            self._send(self._call.send())
        if not self._unwritten:
            self._send(self._call.grant())

    def _wait(self) -> dict[int, int]:
        """Return the descriptors on which something can be done, with their events."""
        if sys.platform == "win32":
            raise ConfigError(
                "a cap cannot be called from the command line on Windows: serve the cartridge with `capdag serve`, and"
                " call it over HTTP"
            )
        else:  # noqa: RET506 - type checkers know which branch is for which system
            poll = select.poll()
            poll.register(self._signals, select.POLLIN)
            if not self._unwritten:
                poll.register(self._frames_in, select.POLLIN)
            if self._stopped is None:
                # Without POLLOUT it still tells that its reader has gone.
                poll.register(self._output_fd, select.POLLOUT if self._unwritten else 0)
                for sender in self._call.senders:
                    if sender.wanted_fd is not None:
                        poll.register(sender.wanted_fd, select.POLLIN)
            left = None if self._deadline is None else 1000 * max(0.0, self._deadline - time.monotonic())
            return dict(poll.poll(left))

    def _read_frames(self) -> None:
        try:
            data = os.read(self._frames_in, _READ)
            if not data:
                raise RemoteProtocolError("the cartridge's runtime has ended before the request had")
            for body in self._splitter.feed(data):
                self._send(self._call.take(inspect(body)))
        except ProtocolError as error:
            self._stop(error)

    def _read_arguments(self, ready: Mapping[int, int]) -> None:
        try:
            for sender in self._call.senders:
                if sender.wanted_fd in ready:
                    sender.read()
        except ConfigError as error:
            self._stop(error)

    def _write_some(self, events: int) -> None:
        """Write what needs no waiting; give up quietly if nobody reads it any more, as other commands do."""
        try:
            if not events & _ROOM:
                raise BrokenPipeError
            while self._unwritten:
                piece = self._unwritten.popleft()
                written = os.write(self._output_fd, piece if self._output_is_file else piece[:SURE])
                if written < len(piece):
                    self._unwritten.appendleft(piece[written:])
                if not self._output_is_file:
                    return
        except BrokenPipeError:
            self._stop(StoppedError("", UNREAD))
        except BlockingIOError:
            self._unwritten.appendleft(piece)
        except OSError as error:
            self._stop(StoppedError(f"cannot write to stdout: {error.strerror}", 1))

    def _stop(self, why: CapdagError) -> None:
        """Cancel the call; only its end is waited for, and not for ever. The first reason stands."""
        self._unwritten.clear()
        if self._stopped is None:
            self._stopped = why
            self._deadline = time.monotonic() + _PATIENCE
            self._send([self._call.cancel()])

    def _send(self, frames: Iterable[Frame]) -> None:
        """Write frames to the cartridge, which always reads."""
        for frame in frames:
            self._numbers.assign(frame)
            data = memoryview(pack(view_of(frame), DEFAULT_LIMITS.max_frame))
            while data:
                data = data[os.write(self._frames_out, data) :]


@contextmanager
def _signal_fd() -> Iterator[int]:
    """Give a descriptor that says which signal asked for the end, one byte. The second signal ends the process.

    What whoever started the process had it ignore (nohup, a job in the background) stays ignored.
    """
    read_fd, write_fd = os.pipe()
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        if seen:
            kill_children()
            os._exit(128 + number)
        seen.append(number)
        os.write(write_fd, bytes((number,)))

    wanted = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield read_fd
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_fd)
        os.close(write_fd)
