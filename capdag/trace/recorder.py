"""A process between a host and a cartridge that passes bytes on as they come and writes down the frames.

The host sees the cartridge's own end: the recorder ends with the same exit code or signal. It stays in the process
group it was started in, so that whatever the host does to the group reaches the cartridge as well.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameSplitter, inspect
from capdag.wire.limits import HARD_MAX_FRAME

from .file import SETTINGS_VARIABLE, Closed, End, Exited, FrameSeen, Record, TraceError, TraceWriter, Unreadable
from .masking import hide_secrets, mask

_READ_SIZE = 65_536

_SHOWN = 4096
"""Bytes kept of what is no frame."""

SIGNAL_PATIENCE = 1.0
"""Seconds after which a cartridge that is still there is sent a signal that this process was sent."""

LAST_WORDS = 1.0
"""Seconds for what a cartridge that has ended left in its pipe: a grandchild may hold it open."""


_CAN_RECORD = sys.platform != "win32"

if sys.platform == "win32":
    _KILL = signal.SIGTERM
    _ENDING = (signal.SIGTERM, signal.SIGINT)

    def _end_of_host(fd: int) -> trio.abc.Stream:
        raise NotImplementedError
else:
    _KILL = signal.SIGKILL
    _ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def _end_of_host(fd: int) -> trio.abc.Stream:
        return trio.lowlevel.FdStream(os.dup(fd))


def record(path: Path, command: Sequence[str], *, payloads: bool) -> int:
    """Run `command` with this process's stdin and stdout, and write what passes to `path`.

    Returns the exit code to end with; ends this process itself by the signal that ended the cartridge. Raises
    TraceError if the file cannot be made or the command not be started, and on Windows.
    """
    if not _CAN_RECORD:
        raise TraceError("a cartridge cannot be recorded on Windows: leave --trace out, or record it on Linux or macOS")
    writer = TraceWriter(path, command, payloads=payloads, settings=_settings())
    try:
        code = trio.run(_Recorder(writer, payloads).run, command)
    except TraceError:
        writer.remove()
        raise
    finally:
        writer.close()
    if code < 0:
        if -code != _KILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _settings() -> dict[str, Any] | None:
    """Return what the host gave the cartridge as settings; None if it gave none, or not in our form."""
    try:
        settings = json.loads(os.environ.get(SETTINGS_VARIABLE, ""))
    except ValueError:
        return None
    return hide_secrets(settings) if isinstance(settings, dict) else None


class _Recorder:
    """Writes down what the taps see, on one clock, as long as the disk takes it."""

    def __init__(self, writer: TraceWriter, payloads: bool) -> None:
        self.payloads = payloads
        self._writer: TraceWriter | None = writer
        self._began = 0.0

    async def run(self, command: Sequence[str]) -> int:
        """Pass bytes on until the process has ended; return its exit code, or minus its signal."""
        self._began = trio.current_time()
        with trio.open_signal_receiver(*_ENDING) as signals:
            child = await _start(command)
            assert child.stdin is not None
            assert child.stdout is not None
            host_in, host_out = (_end_of_host(fd) for fd in (0, 1))
            answered = trio.Event()
            async with trio.open_nursery() as pumps:
                pumps.start_soon(_pass_signals_on, signals, child)
                pumps.start_soon(self._pass_on, host_in, child.stdin, _Tap("cartridge", self), trio.Event())
                pumps.start_soon(self._pass_on, child.stdout, host_out, _Tap("host", self), answered)
                code = await child.wait()
                with trio.move_on_after(LAST_WORDS):
                    await answered.wait()
                pumps.cancel_scope.cancel()
        self.note([Exited(self.now(), code=code) if code >= 0 else Exited(self.now(), signal=-code)])
        return code

    def now(self) -> float:
        """Return the seconds since the start."""
        return round(trio.current_time() - self._began, 6)

    def note(self, records: Sequence[Record]) -> None:
        """Write records down. A full disk ends the trace and not the cartridge."""
        if self._writer is None or not records:
            return
        try:
            self._writer.write(*records)
        except OSError as error:
            print(f"capdag trace: the trace ends here ({error.strerror})", file=sys.stderr)  # noqa: T201
            self._writer = None

    async def _pass_on(
        self, source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, tap: _Tap, over: trio.Event
    ) -> None:
        """Copy until the source ends or nobody reads the sink; then end both."""
        try:
            async with source, sink:
                while data := await source.receive_some(_READ_SIZE):
                    tap.feed(bytes(data))
                    await sink.send_all(data)
                tap.eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            tap.eof()
        over.set()


async def _pass_signals_on(signals: AsyncIterator[int], child: trio.Process) -> None:
    """Outlive signals: those for the group reach the cartridge by themselves, whose end is waited for.

    One that was for this process alone is passed on; nothing tells the two apart but that the cartridge lives on.
    """
    async for number in signals:
        await trio.sleep(SIGNAL_PATIENCE)
        with suppress(ProcessLookupError):
            child.send_signal(number)


async def _start(command: Sequence[str]) -> trio.Process:
    try:
        return await trio.lowlevel.open_process(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise TraceError(f"cannot start {shlex.join(command)}: {error.strerror}") from None


class _Tap:
    """Reads the frames of one direction as they pass."""

    def __init__(self, to: End, recorder: _Recorder) -> None:
        self._to = to
        self._recorder = recorder
        self._splitter: FrameSplitter | None = FrameSplitter(HARD_MAX_FRAME)

    def feed(self, data: bytes) -> None:
        """Write down the frames that end in these bytes."""
        self._recorder.note(list(self._read(data)))

    def eof(self) -> None:
        """Write down the end."""
        self._recorder.note([Closed(self._recorder.now(), self._to)])

    def _read(self, data: bytes) -> Iterator[Record]:
        """Yield the frames of these bytes. What is no frame is written down once, and ends the reading."""
        if self._splitter is None:
            return
        body, now, payloads = data, self._recorder.now(), self._recorder.payloads
        try:
            for body in self._splitter.feed(data):
                view = inspect(body)
                yield FrameSeen(now, self._to, body if payloads else mask(view).body)
        except RemoteProtocolError as error:
            self._splitter = None
            yield Unreadable(now, self._to, body[:_SHOWN] if payloads else b"", str(error))
