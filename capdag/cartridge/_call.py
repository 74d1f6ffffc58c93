"""A call as a plain handler makes it: opening, reading and leaving block; arguments go out from workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Condition, Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from capdag.errors import LinkClosedError
from capdag.wire import body_end_frame, cancel_frame

from ._argument import Argument
from ._call_core import Answers, MadeCall, Progress, head_of_argument
from ._errors import RequestCancelledError
from ._inbound import Streams
from ._input import Input
from ._job import Job
from ._output import Output

if TYPE_CHECKING:
    from ._calls import CallTable
    from ._workers import Workers

T = TypeVar("T")


class Call(MadeCall[Input]):
    """A call of another cap, made by `request.call`. Nothing is sent before it is entered or read.

        text = request.call(CAP, Argument("media:text", "hello")).text()

        with request.call(CAP, Argument("media:text", source)) as call:
            for value in call:
                request.output.write(value)

    Iterating gives the values of the main output. Leaving the block before everything that was asked for has been
    read, or with an error, sends CANCEL. A failure of the callee raises RequestFailedError with its code, class and
    detail, after all values that came before it; a handler that lets it pass hands it to its own caller.
    Everything raises RequestCancelledError once the handler's own request is over; the call is cancelled then.
    """

    def __init__(
        self, job: Job, table: CallTable, workers: Workers, cap: str, arguments: tuple[Argument, ...],
        outputs: tuple[str, ...], progress: Progress,
    ) -> None:  # fmt: skip
        super().__init__(job, cap, arguments, progress)
        self._table = table
        self._workers = workers
        self._writer = job.writer
        self._lock = Lock()
        self._changed = Condition()
        self._core.answers = Answers(
            self._core.cap, outputs, _make_input, self._changed, self._core.flow, job.limits.initial_credit,
            self._writer.send_unnumbered, job.outputs.flush_within_credit,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        return iter(self.main)

    def read(self) -> bytes:
        """Return the whole main output as bytes (see `Input.read`); outside of a block this is the whole call."""
        with self._made():
            return self.main.read()

    def text(self) -> str:
        """Return the whole main output as text, in a block or without."""
        with self._made():
            return self.main.text()

    def json(self, kind: type[T]) -> T:
        """Return the whole main output, JSON, as a value of type `kind` (see `Input.json`), in a block or without."""
        with self._made():
            return self.main.json(kind)

    def values(self) -> list[Any]:
        """Return all values or items of the main output, in a block or without."""
        with self._made():
            return list(self.main)

    def wait(self) -> None:
        """Wait for the end of the call, throwing away what has not been read; outside of a block this is the whole
        call. Raises what it ended with."""
        with self._made():
            for stream, credit in self._answers.discard():
                self._answers.grant(stream, credit)
            self._wait_for_end()

    def _made(self) -> AbstractContextManager[object]:
        """The call for a block: this block, unless it is in one already."""
        if self._left:
            raise self._made_before()
        return nullcontext() if self._entered else self

    def __enter__(self) -> Self:
        if self._entered:
            raise self._made_before()
        self._entered = True
        core = self._core
        outs = [
            Output(head_of_argument(number, argument), core.flow, core.job.limits, self._writer)
            for number, argument in enumerate(self._arguments)
        ]
        core.outs = {out._head.stream_id: out for out in outs}
        self._table.open(core)
        try:
            self._writer.send_frame(core.flow, core.req())
            if not outs:
                self._end_body()
            for out, argument in zip(outs, self._arguments, strict=True):
                self._start_sending(out, argument)
        except BaseException as error:
            self._give_up(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._answers.is_read:
            try:
                self._wait_for_end()
            except BaseException as failure:
                self._give_up(failure)
                raise
        self._give_up(error)

    def _wait_for_end(self) -> None:
        with self._changed:
            while not self._core.over:
                self._answers.check()
                self._changed.wait()
            self._answers.check()
            self._answers.check_ending()

    def _give_up(self, error: BaseException | None) -> None:
        """Leave: with CANCEL unless the call has ended."""
        self._left = True
        core = self._core
        if self._table.leave(core):
            with suppress(LinkClosedError):
                self._writer.send_unnumbered(cancel_frame(core.rid, core.reason_to_leave(error)))
        if not core.over:
            core.over = True
            core._close_outs()

    def _start_sending(self, out: Output, argument: Argument) -> None:
        """Send a value that surely fits the first window at once, anything else from a worker."""
        if argument.fits(out, self._core.job.limits.initial_credit):
            self._send(out, argument)
        else:
            self._workers.run(lambda: self._send(out, argument))

    def _send(self, out: Output, argument: Argument) -> None:
        try:
            out.open(argument.meta, unbounded=argument.unbounded)
            if argument.is_whole:
                out.write(argument.data)
            else:
                for value in argument.data:
                    if argument.is_sequence:
                        out.item(value)
                    else:
                        out.write(value)
            out.finish()
        except RequestCancelledError as error:
            if not self._core.over:
                self._core.finish(error)
            return
        except BaseException as error:  # noqa: BLE001 - the author's own iterator: whoever reads the answer is told
            self._core.finish(error)
            return
        with self._lock:
            self._unsent -= 1
            last = self._unsent == 0
        if last:
            self._end_body()

    def _end_body(self) -> None:
        with suppress(LinkClosedError):
            self._writer.send_frame(self._core.flow, body_end_frame(self._core.rid), terminal=True)


def _make_input(source: Streams, media_urn: str) -> Input:
    return Input(source, media_urn, is_required=False)
