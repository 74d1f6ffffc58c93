"""A request whose handler is an async function: a task of the loop, ended by cancelling its own scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from capdag.wire import Failure, Frame, Limits, LogRecord

from ._arguments import Arguments
from ._async_input import AsyncInput, Bell
from ._async_output import AsyncOutput
from ._cancels import is_cancelled_from_outside
from ._failing import failure_of_error
from ._job import Job, OpenFeed
from ._outputs import Outputs
from ._served import ServedCap
from ._writer import Flow

if TYPE_CHECKING:
    from ._line import Line

CLEAN_UP_SECONDS = 3.0
"""What a cancelled handler has, shielded or not, before its ERR goes out all the same."""


class AsyncJob(Job):
    """A job whose handler is a task. Everything happens in the loop's thread."""

    outputs: Outputs[AsyncOutput]

    def __init__(self, cap: ServedCap, asked: str, flow: Flow, limits: Limits, line: Line, open_feed: OpenFeed) -> None:
        super().__init__(cap, asked, flow, limits, line.writer)
        self.line = line
        self._bell = Bell()
        self._scope = trio.CancelScope()
        self._waiting = trio.CancelScope()
        self.outputs = Outputs(cap, lambda head: AsyncOutput(head, flow, limits, line))
        self.arguments = Arguments(
            cap,
            lambda source, arg: AsyncInput(source, arg.media_urn, is_required=arg.is_required),
            lambda *asked: open_feed(self.wake, *asked),
            self._bell,
            flow,
            limits.initial_credit,
            line.post,
            self.outputs.flush_within_credit,
        )

    def wake(self) -> None:
        """Have the reader of a feed look again. From any thread."""
        if self.line.is_here:
            self._bell.notify_all()
        else:
            self.line.token.run_sync_soon(self._bell.notify_all)

    async def run(self, work: Callable[[], Awaitable[object]], on_settled: Callable[[Job], None]) -> None:
        """Do the handler's work and send the terminal. Raises nothing but the cancellation of the loop itself."""
        failure = None
        try:
            with self._scope:
                await work()
                for facts, output in self.outputs.declared():
                    await output.finish(is_required=facts.is_required)
        except BaseException as error:
            if is_cancelled_from_outside(error):
                raise
            failure = failure_of_error(error)
        self._waiting.cancel()
        self._settle(failure, on_settled)

    def stop(self, reason: Failure) -> bool:
        """Make the job end with `reason`: its tasks are cancelled before anything else can wake them."""
        if self.stop_reason is None and not self._settled:
            self._scope.cancel()
        return super().stop(reason)

    async def end_late(self, on_settled: Callable[[Job], None]) -> None:
        """Send the ERR of a stopped job when its handler is still cleaning up after its time."""
        with self._waiting:
            await trio.sleep(CLEAN_UP_SECONDS)
        self._settle(None, on_settled)

    def pass_on(self, record: LogRecord) -> None:
        """Send a LOG that somebody else has made."""
        self.log(record)

    def send_unnumbered(self, frame: Frame) -> None:
        """Send a frame that has no seq. Never waits."""
        self.line.post(frame)

    def _send(self, frame: Frame, *, terminal: bool = False) -> None:
        self.line.post(frame, self.flow, terminal=terminal)
