"""Tasks that run as long as a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


@contextmanager
def ungrouped() -> Iterator[None]:
    """Let the only exception of a nursery in the block leave as it is: that a nursery stands there is an
    implementation's own business. Several leave as the group they are.

    An error beside which other tasks were cancelled leaves alone too: their scope sees it go by, as without tasks.
    """
    try:
        yield
        return
    except BaseExceptionGroup as group:
        _, failed = group.split(trio.Cancelled)
        found = failed or group
        if len(found.exceptions) != 1:
            raise
        error = found.exceptions[0]
    raise error from error.__cause__


@asynccontextmanager
async def background(*tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[trio.Nursery]:
    """Run `tasks` while the block runs, and cancel them at its end. Gives the nursery, for more of the kind.

    What the block raises leaves as it is, and so does what a task raises, which ends the block.
    """
    with ungrouped():
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(task)
            yield nursery
            nursery.cancel_scope.cancel()
