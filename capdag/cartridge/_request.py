"""What a plain handler holds in its hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from ._requests import RequestBase

if TYPE_CHECKING:
    from ._argument import Argument
    from ._call import Call
    from ._call_core import Progress
    from ._calls import CallTable
    from ._input import Input
    from ._job import ThreadJob
    from ._output import Output
    from ._workers import Workers


class Request(RequestBase):
    """One request, given to a plain handler. The handler returns to end it with success or raises to end it with ERR.

    All methods may be called from any thread.
    """

    def __init__(self, job: ThreadJob, table: CallTable, workers: Workers) -> None:
        super().__init__(job)
        self._job = job
        self._table = table
        self._workers = workers

    def main_input(self) -> Input:
        """Return the argument that the cap's in= names. Raises LocalProtocolError for in=media:void."""
        return cast("Input", self._main_input())

    def input(self, media_urn: str) -> Input:
        """Return the argument declared with this media URN. Raises LocalProtocolError if none is."""
        return cast("Input", self._named_input(media_urn))

    @property
    def output(self) -> Output:
        """The output that the cap's out= names. Raises LocalProtocolError for out=media:void."""
        main = self._job.outputs.main
        if main is None:
            raise self._no_main_output()
        return main

    def named_output(self, media_urn: str) -> Output:
        """Return the output declared with this media URN. Raises LocalProtocolError if none is."""
        return self._job.outputs.named(media_urn)

    def call(self, cap: str, *arguments: Argument, outputs: Sequence[str] = (), progress: Progress = True) -> Call:
        """Call another cap, wherever it is served; see `Call` for how it is made and read.

        `outputs` are the media URNs of the named outputs to be read; others are thrown away. The callee's progress is
        passed on to this request's caller, mapped to the part of its bar that `progress` gives as two fractions, or
        not at all if it is False. Raises LocalProtocolError for a wrong URN.
        """
        from ._call import Call

        return Call(self._job, self._table, self._workers, cap, arguments, tuple(outputs), progress)

    def keep_alive(self, message: str, *, interval: float = 5.0, limit: float = 600.0) -> AbstractContextManager[None]:
        """While the block runs, tell the caller every `interval` seconds that work goes on: progress with the last
        fraction that was told and `message`. For work that blocks and says nothing, as loading a model does. After
        `limit` seconds it falls silent: what takes that long is stuck."""
        from ._keep_alive import keep_alive

        return keep_alive(self, self._job, message, interval, limit)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Have `callback` called, in another thread, when the caller no longer wants the answer; at once and here if
        that is so already. It is never called after the request's terminal, which waits for one that runs."""
        self._job.on_cancel(callback)
