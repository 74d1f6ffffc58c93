"""The gateway on its TCP port, and the same application on the admin socket of this machine's user."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import trio

from capdag.client import Client
from capdag.config import Config
from capdag.gateway import Gateway, PortInUseError, TcpBind, UnixBind, create_app, serve_http
from capdag.relay import open_switch

from ._admin import LocalAdmin
from ._failure import TakenError
from ._folders import admin_socket
from ._run import Run
from ._settings import gateway_settings


class Addresses(NamedTuple):
    """Where a gateway listens."""

    url: str
    admin: Path


async def serve_gateway(
    client: Client,
    admin: LocalAdmin,
    config: Config,
    run: Run,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[Addresses],
) -> None:
    """Serve HTTP until `stop` is set and running requests have drained; reports where it listens.

    Raises TakenError before that if the port is in use, and other CapdagErrors for what cannot be listened on.
    """
    settings = gateway_settings(config)
    app = create_app(client, settings, admin=admin)
    async with trio.open_nursery() as nursery:
        serve = partial(serve_http, app, settings=settings, shutdown=stop)
        try:
            urls = await nursery.start(serve, [TcpBind(config.gateway.host, config.gateway.port)])
        except PortInUseError as error:
            raise TakenError(str(error)) from error
        path = admin_socket(urlsplit(urls[0]).port or 0)
        await nursery.start(_serve_socket, app, path, run, stop)
        task_status.started(Addresses(urls[0], path))


async def serve_admin(admin: LocalAdmin, path: Path, run: Run, stop: trio.Event) -> None:
    """Serve the admin routes of a process that has no gateway, until `stop` is set."""
    async with open_switch() as switch:
        await _serve_socket(create_app(Client(switch), admin=admin), path, run, stop)


async def _serve_socket(
    app: Gateway,
    path: Path,
    run: Run,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    run.announce(path)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, app, [UnixBind(path)], shutdown=stop))
        run.guardian.add_path(path)
        task_status.started()
    # It went with its listener, and may be another server's by the time the guardian closes.
    run.guardian.remove_path(path)
