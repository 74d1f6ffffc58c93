"""A call as an async handler makes it: opening, reading and leaving are checkpoints; arguments go out from tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from inspect import isasyncgen
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from capdag.wire import body_end_frame, cancel_frame

from ._argument import Argument
from ._async_input import AsyncInput, Bell
from ._async_output import AsyncOutput
from ._call_core import Answers, MadeCall, Progress, head_of_argument
from ._calls import CallTable
from ._cancels import is_cancelled_from_outside
from ._inbound import Streams

if TYPE_CHECKING:
    import trio

    from ._async_job import AsyncJob
else:
    from ._lazy import trio

T = TypeVar("T")


class AsyncCall(MadeCall[AsyncInput]):
    """A call of another cap, made by `request.call`. Nothing is sent before it is entered or read.

        text = await request.call(CAP, Argument("media:text", "hello")).text()

        async with request.call(CAP, Argument("media:text", source)) as call:
            async for value in call:
                await request.output.write(value)

    As `Call`, with `await`: iterating gives the values of the main output; leaving early sends CANCEL; failures keep
    code, class and detail. Everything is a checkpoint.
    """

    def __init__(
        self, job: AsyncJob, table: CallTable, cap: str, arguments: tuple[Argument, ...], outputs: tuple[str, ...],
        progress: Progress,
    ) -> None:  # fmt: skip
        super().__init__(job, cap, arguments, progress)
        self._table = table
        self._line = job.line
        self._failed = False
        self._scopes: list[trio.CancelScope] = []
        self._changed = Bell()
        self._core.answers = Answers(
            self._core.cap, outputs, _make_input, self._changed, self._core.flow, job.limits.initial_credit,
            self._line.post, job.outputs.flush_within_credit,
        )  # fmt: skip

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self.main)

    async def read(self) -> bytes:
        """Return the whole main output as bytes: see `Call.read`."""
        async with self._made():
            return await self.main.read()

    async def text(self) -> str:
        """Return the whole main output as text."""
        async with self._made():
            return await self.main.text()

    async def json(self, kind: type[T]) -> T:
        """Return the whole main output, JSON, as a value of type `kind`: see `Input.json`."""
        async with self._made():
            return await self.main.json(kind)

    async def values(self) -> list[Any]:
        """Return all values or items of the main output."""
        async with self._made():
            return [value async for value in self.main]

    async def wait(self) -> None:
        """Wait for the end of the call, throwing away what has not been read; outside of a block this is the whole
        call. Raises what it ended with."""
        async with self._made():
            for stream, credit in self._answers.discard():
                self._answers.grant(stream, credit)
            await self._wait_for_end()

    def _made(self) -> AbstractAsyncContextManager[object]:
        """The call for a block: this block, unless it is in one already."""
        if self._left:
            raise self._made_before()
        return nullcontext() if self._entered else self

    async def __aenter__(self) -> Self:
        if self._entered:
            raise self._made_before()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._entered = True
        core = self._core
        outs = [
            AsyncOutput(head_of_argument(number, argument), core.flow, core.job.limits, self._line)
            for number, argument in enumerate(self._arguments)
        ]
        core.outs = {out._head.stream_id: out for out in outs}
        self._table.open(core)
        try:
            self._line.post(core.req(), core.flow)
        except BaseException as error:
            self._give_up(error)
            raise
        if not outs:
            self._end_body()
        for out, argument in zip(outs, self._arguments, strict=True):
            scope = trio.CancelScope()
            self._scopes.append(scope)
            self._line.spawn(self._send, scope, out, argument)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._answers.is_read:
                await self._wait_for_end()
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._give_up(error)
        # Nothing of the call is left when its block is: the author's own iterators have been closed.
        while self._unsent:
            await self._changed.wait()

    async def _wait_for_end(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._core.over:
            self._answers.check()
            await self._changed.wait()
        self._answers.check()
        self._answers.check_ending()

    def _give_up(self, error: BaseException | None) -> None:
        """Leave: with CANCEL unless the call has ended."""
        self._left = True
        core = self._core
        if self._table.leave(core):
            self._line.post(cancel_frame(core.rid, core.reason_to_leave(error)))
        if not core.over:
            core.over = True
            core._close_outs()
        for scope in self._scopes:
            scope.cancel()

    async def _send(self, scope: trio.CancelScope, out: AsyncOutput, argument: Argument) -> None:
        """Send one argument. Failures of the author's own iterator are for whoever reads the answer."""
        whole = False
        try:
            with scope:
                await self._send_all(out, argument)
                whole = True
        except BaseException as error:
            if is_cancelled_from_outside(error):
                raise
            self._core.finish(error)
        finally:
            self._unsent -= 1
            self._changed.notify_all()
        self._failed = self._failed or not whole
        if not self._unsent and not self._failed:
            self._end_body()

    async def _send_all(self, out: AsyncOutput, argument: Argument) -> None:
        put = out.item if argument.is_sequence else out.write
        data = argument.data
        await out.open(argument.meta, unbounded=argument.unbounded)
        if argument.is_whole:
            await out.write(data)
        elif hasattr(data, "__aiter__"):
            if isasyncgen(data):
                async with aclosing(data):
                    async for value in data:
                        await put(value)
            else:
                async for value in data:
                    await put(value)
        else:
            for value in data:
                await put(value)
        await out.finish()

    def _end_body(self) -> None:
        self._line.post(body_end_frame(self._core.rid), self._core.flow, terminal=True)


def _make_input(source: Streams, media_urn: str) -> AsyncInput:
    return AsyncInput(source, media_urn, is_required=False)
