"""Serving HTTP: Hypercorn's connections over our listeners, and an end that is always bounded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from .app import Gateway
from .http11 import Http11Connection
from .listener import Bind, HttpListener, HttpStream, TcpBind, UnixBind, open_listeners
from .settings import DEFAULT_SETTINGS, GatewaySettings

log = logging.getLogger("capdag.gateway.http")


async def serve_http(
    app: Gateway,
    binds: Sequence[Bind],
    settings: GatewaySettings = DEFAULT_SETTINGS,
    *,
    shutdown: trio.Event | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until `shutdown` is set or the call is cancelled; reports the addresses when it listens.

    Raises PortInUseError, BindError or SocketError before that. After `shutdown` nothing is accepted any more;
    running requests may go on for `settings.drain` seconds, are then ended with an error, and after
    `settings.last_words` the connections are cut. Cancelling cuts them at once.
    """
    async with AsyncExitStack() as stack:
        listeners: list[HttpListener] = []
        for bind in binds:
            for listener in await open_listeners(bind, settings.write_deadline):
                listeners.append(await stack.enter_async_context(listener))
        connections = _Connections(app, settings)
        async with trio.open_nursery() as nursery:
            try:
                await _accept(
                    listeners, connections, nursery, shutdown if shutdown is not None else trio.Event(), task_status
                )
                await _drain(app, connections, settings)
            finally:
                connections.cut()
                nursery.cancel_scope.cancel()


async def _accept(
    listeners: Sequence[HttpListener],
    connections: _Connections,
    nursery: trio.Nursery,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Accept connections, which then run in `nursery`, until `shutdown`."""
    async with trio.open_nursery() as accepting:
        for listener in listeners:
            serve = partial(connections.serve, listener.bind)
            accepting.start_soon(partial(trio.serve_listeners, serve, [listener], handler_nursery=nursery))
        task_status.started([listener.address for listener in listeners])
        await shutdown.wait()
        accepting.cancel_scope.cancel()


async def _drain(app: Gateway, connections: _Connections, settings: GatewaySettings) -> None:
    await connections.let_go()
    with trio.move_on_after(settings.drain):
        await connections.gone()
    app.interrupt()
    with trio.move_on_after(settings.last_words):
        await connections.gone()


class _Connections:
    """The open connections of a server."""

    def __init__(self, app: Gateway, settings: GatewaySettings) -> None:
        self._app = ASGIWrapper(app)
        self._config = _hypercorn_config(settings)
        self._context = WorkerContext(None)
        self._body_room = app.body_room
        self._open: set[HttpStream] = set()
        self._none_open = trio.Event()

    async def serve(self, bind: Bind, stream: HttpStream) -> None:
        """Serve one connection to its end. Its faults stay its own."""
        state = {"unix": isinstance(bind, UnixBind), "loopback": isinstance(bind, TcpBind) and bind.is_loopback}
        self._open.add(stream)
        try:
            await Http11Connection(
                self._app, self._config, self._context, ConnectionState(state), stream, self._body_room
            )
        except* Exception:
            log.exception("a connection failed; the others go on")
        finally:
            self._open.discard(stream)
            if not self._open:
                self._none_open.set()

    async def let_go(self) -> None:
        """Close idle connections now, and the others after the request that runs on them."""
        await self._context.terminated.set()

    async def gone(self) -> None:
        """Wait until no connection is open."""
        while self._open:
            self._none_open = trio.Event()
            await self._none_open.wait()

    def cut(self) -> None:
        """Close every connection at once, in the middle of a write too."""
        for stream in self._open:
            stream.abort()


def _hypercorn_config(settings: GatewaySettings) -> Config:
    config = Config()
    config.errorlog = log
    config.accesslog = None
    config.include_server_header = False
    config.keep_alive_timeout = settings.idle_limit
    config.h11_max_incomplete_size = 64 * 1024
    return config
