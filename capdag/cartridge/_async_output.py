"""What an async handler answers with: output streams that wait for credit in a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from capdag.errors import CapdagError, LocalProtocolError
from capdag.wire import Limits, SendWindow

from ._outbound import Build, Head, OutCore, State
from ._writer import Flow

if TYPE_CHECKING:
    import trio

    from ._line import Line
else:
    from ._lazy import trio


class AsyncGate:
    """The credit of one stream. Everything happens in the loop's thread."""

    def __init__(self, initial: int) -> None:
        self._window = SendWindow(initial)
        self._changed = trio.Event()
        self._closed: CapdagError | None = None

    def take_now(self) -> bool:
        """Use one credit; False if there is none. Raises the error the gate was closed with."""
        self.check()
        return self._window.take()

    async def take(self) -> None:
        """Use one credit, waiting for it."""
        while not self.take_now():
            self._changed = trio.Event()
            await self._changed.wait()
            await trio.lowlevel.checkpoint_if_cancelled()  # the cancel may have come between the wake-up and its turn

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
        self._window.grant(credit)
        self._changed.set()

    def close(self, error: CapdagError) -> None:
        """Fail whoever waits and whoever comes."""
        self._closed = self._closed or error
        self._changed.set()


P = ParamSpec("P")
R = TypeVar("R")


def _counted(
    method: Callable[Concatenate[AsyncOutput, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[AsyncOutput, P], Coroutine[Any, Any, R]]:
    """Count each call of a method until it is awaited, which begins with `_take_turn`."""

    @wraps(method)
    def call(output: AsyncOutput, /, *arguments: P.args, **options: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine = method(output, *arguments, **options)
        output._unawaited += 1
        return coroutine

    return call


class AsyncOutput(OutCore):
    """One output stream. Every method waits for credit as needed, is a checkpoint, and may be called from any task.

    A cancelled request raises `trio.Cancelled` here, and RequestCancelledError in clean-up that shields itself. A call
    that is not awaited when the handler returns fails the request.
    """

    def __init__(self, head: Head, flow: Flow, limits: Limits, line: Line) -> None:
        super().__init__(head, flow, limits)
        self._line = line
        self._gate = AsyncGate(limits.initial_credit)
        self._busy = False
        self._freed: trio.Event | None = None
        self._torn = False
        self._unawaited = 0

    @_counted
    async def open(self, meta: Mapping[str, Any] | None = None, *, unbounded: bool = False) -> None:
        """Send STREAM_START: see `Output.open`."""
        await self._take_turn()
        try:
            self._check_new(wanted=unbounded or meta is not None)
            self._open(meta, unbounded=unbounded)
        finally:
            self._end_turn()

    @_counted
    async def write(self, value: Any) -> None:
        """Write to a scalar output: see `Output.write`."""
        await self._take_turn()
        try:
            self._require(sequence=False)
            self._open()
            if isinstance(value, (bytes, bytearray, memoryview)):
                value = self._held.add(value, monotonic())
            else:
                await self._send_pieces(self._held.take())
            await self._send_pieces(value)
        finally:
            self._end_turn()

    @_counted
    async def flush(self) -> None:
        """Send bytes that `write` holds back for company."""
        await self._take_turn()
        try:
            self._gate.check()
            await self._send_pieces(self._held.take())
        finally:
            self._end_turn()

    def flush_within_credit(self) -> None:
        """Send bytes that `write` holds back, if that needs no waiting."""
        if self._held and not self._busy and self._gate.remaining * self._max_piece >= len(self._held):
            for payload in self._pieces(self._held.take()):
                taken = self._gate.take_now()
                assert taken
                self._send(self._chunk(payload))

    @_counted
    async def item(self, item: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Write one item, with its meta if given: see `Output.item`."""
        await self._take_turn()
        try:
            self._require(sequence=True)
            self._open()
            first, *others = self._fragments(item)
            if not self._gate.take_now():
                await self._gate.take()
            if meta is None:
                self._send(self._chunk(first))
            else:
                self._line.post(self._described(first, meta), self._flow)
                self._chunks += 1
            if others:
                self._torn = True
                for payload in others:
                    await self._gate.take()
                    self._send(self._chunk(payload))
                    await self._line.room()
                self._torn = False
            elif self._line.is_behind:
                await self._line.room()
        finally:
            self._end_turn()

    @_counted
    async def finish(self, *, is_required: bool = True) -> None:
        """Send what is held and STREAM_END. For the runtime."""
        await self._take_turn()
        try:
            if self._unawaited:
                raise LocalProtocolError(
                    f"output {self.media_urn!r}: a write, item, open or flush was not awaited, and so not done: put"
                    f" `await` before it"
                )
            if self._state is State.NEW and not is_required:
                return
            self._open()
            await self._send_pieces(self._held.take())
            self._line.post(self._end_frame(), self._flow)
        finally:
            self._end_turn()

    async def _take_turn(self) -> None:
        """Wait until no other task writes. (A `trio.Lock` costs as much as all else that a CHUNK needs.)"""
        self._unawaited -= 1
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._busy:
            if self._freed is None:
                self._freed = trio.Event()
            await self._freed.wait()
            await trio.lowlevel.checkpoint_if_cancelled()
        self._busy = True

    def _end_turn(self) -> None:
        self._busy = False
        if self._freed is not None:
            self._freed.set()
            self._freed = None

    def _open(self, meta: Mapping[str, Any] | None = None, *, unbounded: bool = False) -> None:
        self._gate.check()
        if self._torn:
            raise LocalProtocolError(
                f"output {self.media_urn!r}: an item was cancelled half-way, nothing can follow it"
            )
        if self._state is not State.OPEN:
            start = self._start_frame(meta, unbounded=unbounded)
            assert start is not None
            self._line.post(start, self._flow)

    async def _send_pieces(self, value: Any) -> None:
        for payload in self._pieces(value):
            if not self._gate.take_now():
                await self._gate.take()
            self._send(self._chunk(payload))
            if self._line.is_behind:
                await self._line.room()

    def _send(self, build: Build) -> None:
        self._line.post_built(self._flow, build)
        self._chunks += 1
