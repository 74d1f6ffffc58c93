"""Ctrl-C and SIGTERM: the first asks for the ordered shutdown, the second hurries it."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

_log = logging.getLogger(__name__)


async def run_until_signal(body: Callable[[trio.Event], Awaitable[None]], limit: float) -> signal.Signals | None:
    """Run `body(stop)`: the first signal sets `stop`, a second one or `limit` seconds more cancel the body.

    Returns the first signal, None if there was none.
    """
    stop = trio.Event()
    came: list[signal.Signals] = []
    with trio.open_signal_receiver(*_stop_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, signals, came, stop, nursery.cancel_scope, limit)
            await body(stop)
            nursery.cancel_scope.cancel()
    return came[0] if came else None


def _stop_signals() -> list[signal.Signals]:
    found = [signal.SIGINT, signal.SIGTERM]
    # A closed terminal ends the server as Ctrl-C does, unless it was started to outlive it (nohup).
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found


async def _watch(
    signals: AsyncIterator[int],
    came: list[signal.Signals],
    stop: trio.Event,
    scope: trio.CancelScope,
    limit: float,
) -> None:
    async for number in signals:
        came.append(signal.Signals(number))
        name = came[-1].name
        if stop.is_set():
            _log.warning("%s again: what is left is ended at once", name)
            scope.cancel()
            return
        _log.info("%s: shutting down; once more to hurry", name)
        stop.set()
        scope.deadline = trio.current_time() + limit
