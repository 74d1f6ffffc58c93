"""What an async handler holds in its hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from ._requests import RequestBase

if TYPE_CHECKING:
    import trio

    from ._argument import Argument
    from ._async_call import AsyncCall
    from ._async_input import AsyncInput
    from ._async_job import AsyncJob
    from ._async_output import AsyncOutput
    from ._call_core import Progress
    from ._calls import CallTable
else:
    from ._lazy import trio


class AsyncRequest(RequestBase):
    """One request, given to an async handler. The handler returns to end it with success or raises to end it with ERR.

    When the caller no longer wants the answer, the handler's own scope is cancelled: `trio.Cancelled` at its next
    checkpoint. Clean-up that shields itself has 3 s, then the ERR goes out all the same.

    For tasks of the handler, in the loop's thread; from other threads go through `trio.from_thread`. A handler that
    blocks the loop (that computes, or sleeps without await) blocks every async handler and heartbeats with it: put
    such work into `trio.to_thread.run_sync`, or write the handler as a plain `def`.
    """

    def __init__(self, job: AsyncJob, table: CallTable) -> None:
        super().__init__(job)
        self._job = job
        self._table = table

    def main_input(self) -> AsyncInput:
        """Return the argument that the cap's in= names. Raises LocalProtocolError for in=media:void."""
        return cast("AsyncInput", self._main_input())

    def input(self, media_urn: str) -> AsyncInput:
        """Return the argument declared with this media URN. Raises LocalProtocolError if none is."""
        return cast("AsyncInput", self._named_input(media_urn))

    @property
    def output(self) -> AsyncOutput:
        """The output that the cap's out= names. Raises LocalProtocolError for out=media:void."""
        main = self._job.outputs.main
        if main is None:
            raise self._no_main_output()
        return main

    def named_output(self, media_urn: str) -> AsyncOutput:
        """Return the output declared with this media URN. Raises LocalProtocolError if none is."""
        return self._job.outputs.named(media_urn)

    def call(self, cap: str, *arguments: Argument, outputs: Sequence[str] = (), progress: Progress = True) -> AsyncCall:
        """Call another cap, wherever it is served: see `Request.call`."""
        from ._async_call import AsyncCall

        return AsyncCall(self._job, self._table, cap, arguments, tuple(outputs), progress)

    def keep_alive(self, message: str, *, interval: float = 5.0, limit: float = 600.0) -> AbstractContextManager[None]:
        """While the block runs, tell the caller every `interval` seconds that work goes on: see `Request.keep_alive`.
        A plain `with`; it works while the block awaits, as for a thread."""
        return self._keep_alive(message, interval, limit)

    def start_background(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a task that may go on when the request has ended: filling a cache, keeping a connection. It is
        cancelled when the cartridge ends, and has 2 s then; what it raises is shown on stderr and ends nothing else.

        A nursery of the handler's own ends with the request, and what `trio.lowlevel.spawn_system_task` raises ends
        the cartridge. A plain handler starts a daemon thread.
        """
        self._job.line.background.start(work, *arguments)

    @contextmanager
    def _keep_alive(self, message: str, interval: float, limit: float) -> Iterator[None]:
        from ._keep_alive import check_times

        check_times(interval, limit)
        self.progress(self._job.fraction, message)
        scope = trio.CancelScope(deadline=trio.current_time() + limit)

        async def beat() -> None:
            with scope:
                while not self.cancelled:
                    await trio.sleep(interval)
                    self.progress(self._job.fraction, message)

        self._job.line.spawn(beat)
        try:
            yield
        finally:
            scope.cancel()
