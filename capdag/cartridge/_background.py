"""Tasks of handlers that go on when their requests have ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ._cancels import is_cancelled_from_outside
from ._errors import show_traceback


class Background:
    """Runs each task in a scope of its own, by `spawn`. What it raises ends nothing but itself."""

    def __init__(self, spawn: Callable[..., None]) -> None:
        self._spawn = spawn
        self._scopes: set[trio.CancelScope] = set()
        self._closed = False

    def start(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a task; one that comes after `close` is cancelled at its first checkpoint."""
        self._spawn(self._run, work, arguments)

    def close(self) -> None:
        """Cancel all of them."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(self, work: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        scope = trio.CancelScope()
        self._scopes.add(scope)
        if self._closed:
            scope.cancel()
        try:
            with scope:
                await work(*arguments)
        except BaseException as error:
            if is_cancelled_from_outside(error):
                raise
            show_traceback()
        finally:
            self._scopes.discard(scope)
