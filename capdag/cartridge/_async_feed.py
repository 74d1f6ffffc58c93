"""Async sources of live feeds: tasks of the loop."""

from __future__ import annotations

from collections.abc import AsyncIterable

import trio

from ._cancels import is_cancelled_from_outside
from ._errors import CartridgeError, show_traceback
from ._feeds import FeedQueue
from ._selector import LiveFeed

CLOSE_SECONDS = 2.0
"""What a source has to close after itself."""


async def pump_in_task(feed: LiveFeed, queue: FeedQueue) -> None:
    """Run an async source until it ends or no more is wanted; it is cancelled then, whatever it waits for."""
    duration = queue.selector.duration_ms
    scope = trio.CancelScope()
    if duration is not None:
        scope.deadline = trio.current_time() + duration / 1000
    token = trio.lowlevel.current_trio_token()
    queue.on_close(lambda: token.run_sync_soon(scope.cancel))
    try:
        with scope:
            source = feed.opener(queue.selector)
            assert isinstance(source, AsyncIterable)
            items = aiter(source)
            try:
                async for item in items:
                    if not queue.put(item):
                        break
                    await trio.lowlevel.checkpoint()
            finally:
                close = getattr(items, "aclose", None)
                if close is not None:
                    with trio.CancelScope(deadline=trio.current_time() + CLOSE_SECONDS, shield=True):
                        await close()
        queue.close()
    except BaseException as error:
        if is_cancelled_from_outside(error):
            raise
        if not isinstance(error, CartridgeError):
            show_traceback()
        queue.close(error)
