"""The synchronous shell: every handler runs in a worker thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from capdag.urn import MediaUrn
from capdag.wire import Limits, LogRecord

from ._feeds import FeedQueue, Feeds, pump
from ._job import Job, ThreadJob
from ._request import Request
from ._selector import Bad, LiveFeed, Selector
from ._served import ServedCap, check_returned
from ._workers import Workers
from ._writer import Flow, FrameWriter

if TYPE_CHECKING:
    from ._session import Session

DEQUEUED = LogRecord("dequeued", "the request has left the queue, its handler starts")


class ThreadShell:
    """Runs handlers that are plain functions."""

    def __init__(self, workers: Workers, writer: FrameWriter, feeds: Sequence[LiveFeed]) -> None:
        self._workers = workers
        self._writer = writer
        self._feeds = Feeds(feeds)

    @property
    def overruns(self) -> int:
        """Items of live feeds that were lost."""
        return self._feeds.overruns

    def job(self, cap: ServedCap, asked: str, flow: Flow, limits: Limits) -> Job:
        """Make the job of a request that is accepted."""
        return ThreadJob(cap, asked, flow, limits, self._writer, self._open_feed)

    def _open_feed(self, wake: Callable[[], None], media: MediaUrn, selector: Selector, bad: Bad) -> FeedQueue:
        return self._feeds.open(media, selector, bad, wake, self._start_feed)

    def _start_feed(self, feed: LiveFeed, queue: FeedQueue) -> None:
        self._workers.run(partial(pump, feed, queue))

    def start(self, job: Job, session: Session, *, queued: bool) -> None:
        """Start the handler in a worker."""
        assert isinstance(job, ThreadJob)
        handler = cast("Callable[[Request], object]", job.cap.handler)

        def work() -> None:
            if queued:
                job.log(DEQUEUED)
            check_returned(handler, handler(Request(job, session.calls, self._workers)))

        self._workers.run(partial(job.run, work, session.settle))

    def stopped(self, job: Job, session: Session) -> None:  # noqa: ARG002 - for the other shell
        """Call what the handler has registered, in a worker."""
        assert isinstance(job, ThreadJob)
        self._workers.run(job.call_back)
