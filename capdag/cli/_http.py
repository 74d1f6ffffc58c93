"""The gateway on its TCP port, and once more on the admin socket of this machine's user."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import trio

from capdag.client import Client
from capdag.config import Config, given
from capdag.errors import ConfigError
from capdag.gateway import (
    Gateway,
    GatewaySettings,
    PortInUseError,
    Readiness,
    TcpBind,
    UnixBind,
    create_app,
    serve_http,
)
from capdag.relay import open_switch

from ._admin import LocalAdmin
from ._failure import TakenError
from ._folders import HAS_UNIX_SOCKETS, admin_socket
from ._run import Run
from ._settings import host_settings


class Addresses(NamedTuple):
    """Where a gateway listens."""

    url: str
    admin: Path


def gateway_settings(config: Config) -> GatewaySettings:
    """Return the gateway's settings.

    Raises ConfigError for an address beyond this machine that nobody allowed, or that is not this machine's.
    """
    table = config.gateway
    if not table.without_keys and not TcpBind(table.host, table.port).is_loopback:
        _check_address(table.host)
        raise ConfigError(
            f"gateway.host = {table.host!r} lets other machines use the models, and no key is asked for: keep"
            " 127.0.0.1, or allow it with --without-keys (without_keys = true under [gateway])"
        )
    return GatewaySettings(**{key: value for key, value in given(table).items() if key in GatewaySettings._fields})


def _check_address(host: str) -> None:
    """Raise ConfigError for what is no address of this machine."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"gateway.host = {host!r} is no address of this machine ({error.strerror}): keep 127.0.0.1, or give one"
            " that `ip address` lists"
        ) from None


def shutdown_limit(config: Config) -> float:
    """Return the seconds that an ordered shutdown may take: 9 by default, and with the kills after it under 10."""
    gateway = gateway_settings(config)
    return gateway.drain + gateway.last_words + host_settings(config).stop_grace


async def serve_gateway(
    client: Client,
    admin: LocalAdmin,
    config: Config,
    run: Run,
    stop: trio.Event,
    readiness: Callable[[], Readiness] = lambda: Readiness.READY,
    *,
    task_status: trio.TaskStatus[Addresses],
) -> None:
    """Serve HTTP until `stop` is set and running requests have drained; reports where it listens.

    Raises TakenError before that if the port is in use, and other CapdagErrors for what cannot be listened on.
    """
    settings = gateway_settings(config)
    bind = TcpBind(config.gateway.host, config.gateway.port)
    # Two applications: the end of a server's drain interrupts what its own application still answers.
    public = create_app(client, settings, readiness=readiness)
    private = create_app(client, settings, admin=admin, readiness=readiness)
    async with trio.open_nursery() as nursery:
        try:
            urls = await nursery.start(partial(serve_http, public, [bind], settings, shutdown=stop))
        except PortInUseError as error:
            raise TakenError(str(error)) from error
        path = admin_socket(urlsplit(urls[0]).port or 0)
        await nursery.start(_serve_socket, private, settings, path, run, stop)
        task_status.started(Addresses(urls[0], path))


async def serve_admin(admin: LocalAdmin, path: Path, run: Run, stop: trio.Event) -> None:
    """Serve the admin routes of a process that has no gateway, until `stop` is set."""
    async with open_switch() as switch:
        await _serve_socket(create_app(Client(switch), admin=admin), GatewaySettings(), path, run, stop)


async def _serve_socket(
    app: Gateway,
    settings: GatewaySettings,
    path: Path,
    run: Run,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    if not HAS_UNIX_SOCKETS:
        task_status.started()
        return
    run.announce(path)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, app, [UnixBind(path)], settings, shutdown=stop))
        run.guardian.add_path(path)
        task_status.started()
    # It went with its listener, and may be another server's by the time the guardian closes.
    run.guardian.remove_path(path)
