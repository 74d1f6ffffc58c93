"""A task that runs as long as a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background(*tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[trio.Nursery]:
    """Run `tasks` while the block runs, and cancel them at its end. Gives the nursery, for more of the kind.

    What the block raises leaves as it is, not in a group: that a nursery stands around it is nobody's business.
    """
    error: BaseException
    try:
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(task)
            yield nursery
            nursery.cancel_scope.cancel()
        return
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        error = group.exceptions[0]
    raise error
