"""The asynchronous shell: async handlers are tasks, plain ones run in worker threads as ever. The only way to trio:
imported by a cartridge that has an async handler, once its HELLO has been answered."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, cast

import trio

from capdag.wire import Limits

from ._async_feed import pump_in_task
from ._async_job import AsyncJob
from ._async_request import AsyncRequest
from ._feeds import FeedQueue
from ._job import Job
from ._line import Line
from ._runtime import EXIT_OK, LAST_SECONDS
from ._selector import LiveFeed
from ._served import ServedCap, check_returned
from ._threads import DEQUEUED, ThreadShell
from ._workers import Workers
from ._writer import Flow, FrameWriter

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._session import Session


class TaskShell(ThreadShell):
    """Runs handlers of both kinds."""

    def __init__(self, workers: Workers, writer: FrameWriter, feeds: Sequence[LiveFeed], line: Line) -> None:
        super().__init__(workers, writer, feeds)
        self._line = line

    def job(self, cap: ServedCap, asked: str, flow: Flow, limits: Limits) -> Job:
        """Make the job of a request that is accepted."""
        if not cap.is_async:
            return super().job(cap, asked, flow, limits)
        return AsyncJob(cap, asked, flow, limits, self._line, self._open_feed)

    def start(self, job: Job, session: Session, *, queued: bool) -> None:
        """Start the handler as a task, or in a worker."""
        if not isinstance(job, AsyncJob):
            super().start(job, session, queued=queued)
        elif self._line.is_here:
            self._start_task(job, session, queued)
        else:
            self._line.token.run_sync_soon(self._start_task, job, session, queued)

    def _start_task(self, job: AsyncJob, session: Session, queued: bool) -> None:
        handler = cast("Callable[[AsyncRequest], Awaitable[object]]", job.cap.handler)

        async def work() -> None:
            if queued:
                job.log(DEQUEUED)
            check_returned(handler, await handler(AsyncRequest(job, session.calls)))

        self._line.spawn(job.run, work, session.settle)

    def _start_feed(self, feed: LiveFeed, queue: FeedQueue) -> None:
        if feed.is_async:
            self._line.spawn(pump_in_task, feed, queue)
        else:
            super()._start_feed(feed, queue)

    def stopped(self, job: Job, session: Session) -> None:
        """Wait for the task, which is cancelled, and not for ever; or call what the handler has registered."""
        if isinstance(job, AsyncJob):
            self._line.spawn(job.end_late, session.settle)
        else:
            super().stopped(job, session)


def serve_with_tasks(runtime: Runtime) -> NoReturn:
    """Go on with a runtime whose HELLO has been answered; ends the process."""
    trio.run(_serve, runtime)
    raise AssertionError("the loop ends with the process")


async def _serve(runtime: Runtime) -> None:
    async with trio.open_nursery() as nursery:
        line = Line(runtime.writer, runtime.workers, nursery)
        reading = trio.CancelScope()
        runtime.on_wake = lambda: line.token.run_sync_soon(_wake, runtime, line, reading)
        nursery.start_soon(line.send_when_possible)
        nursery.start_soon(_watch_output, runtime.writer.fd, reading)
        runtime.begin(TaskShell(runtime.workers, runtime.writer, runtime.feeds, line))
        line.flush()
        code = EXIT_OK
        with reading:
            code = await _read(runtime, line)
        if code == EXIT_OK:
            runtime.stop_all()
            line.background.close()
            with trio.move_on_after(LAST_SECONDS):
                while runtime.workers.busy or line.tasks or not runtime.writer.idle:
                    runtime.writer.main_waits = True
                    line.flush()
                    await line.news.wait()
        # Here and now: a task in shielded clean-up, or a thread inside an engine, would keep the loop from ending.
        sys.stderr.flush()
        os._exit(code)


async def _read(runtime: Runtime, line: Line) -> int:
    """Take frames until stdin ends; returns the exit code."""
    while True:
        while runtime.writer.overfull:
            await line.room()
        await _wait_readable(runtime)
        code = runtime.read_once()
        line.flush()
        if code is not None:
            return code


async def _wait_readable(runtime: Runtime) -> None:
    if runtime.polls:
        await trio.lowlevel.wait_readable(runtime.read_fd)
    else:
        await trio.to_thread.run_sync(runtime.fetch, abandon_on_cancel=True)


async def _watch_output(fd: int, reading: trio.CancelScope) -> None:
    """Hear that nobody reads our output any more, though nothing is to be written. Where that cannot be heard, the next
    write tells."""
    if sys.platform == "linux":
        with select.epoll() as epoll, suppress(PermissionError):  # a file has no such end
            epoll.register(fd, 0)
            await trio.lowlevel.wait_readable(epoll.fileno())
            reading.cancel()
    elif sys.platform != "win32":
        poll = select.poll()
        poll.register(fd, 0)
        await trio.to_thread.run_sync(poll.poll, abandon_on_cancel=True)
        reading.cancel()


def _wake(runtime: Runtime, line: Line, reading: trio.CancelScope) -> None:
    """In the loop: the output was found broken, or the last worker has become idle."""
    if runtime.writer.broken:
        reading.cancel()
    line.flush()
    line.news.notify_all()
