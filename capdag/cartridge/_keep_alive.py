"""Signs of life while a plain handler is inside something that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from capdag.errors import LinkClosedError, LocalProtocolError

from ._job import Job
from ._requests import RequestBase


def check_times(interval: float, limit: float) -> None:
    """Raise LocalProtocolError unless both are more than 0 seconds."""
    if not (interval > 0 and limit > 0):
        raise LocalProtocolError(f"keep_alive interval and limit must be over 0 seconds, not {interval!r}, {limit!r}")


@contextmanager
def keep_alive(request: RequestBase, job: Job, message: str, interval: float, limit: float) -> Iterator[None]:
    """Send progress from a thread of its own until the block ends, the request is over or the limit is reached."""
    check_times(interval, limit)
    request.progress(job.fraction, message)
    over = Event()

    def beat() -> None:
        with suppress(LinkClosedError):
            for _ in range(int(limit / interval)):
                if over.wait(interval) or request.cancelled:
                    return
                request.progress(job.fraction, message)

    # A daemon: the process ends by its own deadline. It writes nothing after the block, but for a beat under way.
    thread = Thread(target=beat, name="capdag-keep-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
