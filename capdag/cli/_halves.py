"""The two halves of a split server: a host for one engine at a time, and a gateway that reaches hosts by sockets."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from socket import socket

import trio

from capdag.client import Client
from capdag.config import Config
from capdag.host import HostRuntime
from capdag.relay import Switch, open_switch
from capdag.transport import SocketError, UnixListener, connect_unix, socket_link
from capdag.transport.guardian import Guardian
from capdag.wire import IDENTITY_CAP

from ._admin import LocalAdmin
from ._folders import admin_socket
from ._http import gateway_settings, serve_admin, serve_gateway, shutdown_limit
from ._learn import learn_caps
from ._report import show_addresses, show_roster
from ._roster import Roster, read_roster
from ._run import Run, open_run
from ._settings import checked_models_folder, host_settings, switch_settings
from ._signals import run_until_signal

RETRY_INTERVAL = 0.2
"""Seconds between two attempts to reach the other half over its socket."""

PATIENCE = 5.0
"""Seconds that the other half may take for its start before anything is said of it, or done without it."""

_log = logging.getLogger(__name__)

Use = Callable[[socket], Awaitable[None]]


def run_host(config: Config, commands: Sequence[str], listen: Path | None, connect: Path | None) -> None:
    """Run a host until Ctrl-C or SIGTERM: for engines that connect to `listen`, or for the one at `connect`."""
    folder = checked_models_folder(config)
    roster = read_roster(config, folder, commands)
    trio.run(run_until_signal, partial(_host, config, roster, folder, listen, connect), shutdown_limit(config))


async def _host(
    config: Config, roster: Roster, folder: Path, listen: Path | None, connect: Path | None, stop: trio.Event
) -> None:
    async with open_run() as run, trio.open_nursery() as nursery:
        show_roster(roster, folder)
        half = _HostHalf(config, roster, run.guardian, listen or connect)
        nursery.start_soon(serve_admin, half.admin, admin_socket(f"host-{os.getpid()}"), run, stop)
        if listen is not None:
            nursery.start_soon(_accept, listen, run, half.serve)
        if connect is not None:
            nursery.start_soon(keep_connected, connect, half.serve)
        await stop.wait()
        await half.shutdown()
        nursery.cancel_scope.cancel()


class _HostHalf:
    """The host runtime of the engine that is attached, if one is."""

    def __init__(self, config: Config, roster: Roster, guardian: Guardian, endpoint: Path | None) -> None:
        self.admin = LocalAdmin(endpoint=endpoint)
        self._settings = host_settings(config)
        self._records = roster.records
        self._guardian = guardian

    async def serve(self, sock: socket) -> None:
        """Be the host of one engine until its link ends; then its cartridges are stopped."""
        if self.admin.host is not None:
            _log.warning("an engine that connected while another is attached is turned away")
            sock.close()
            return
        link = socket_link(sock, "relay")
        host = self.admin.host = HostRuntime(self._records, link, self._guardian, self._settings)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(host.run)
                await nursery.start(learn_caps, host, self._records)
                await link.run(host.receiver)
                await host.shutdown()
                nursery.cancel_scope.cancel()
        finally:
            self.admin.host = None
        _log.info("the engine has gone; waiting for another")

    async def shutdown(self) -> None:
        """Settle what the engine has asked for, and stop the cartridges."""
        if self.admin.host is not None:
            await self.admin.host.shutdown()


def run_gateway(config: Config, hosts: Sequence[Path], listen: Path | None) -> None:
    """Serve HTTP until Ctrl-C or SIGTERM, with the hosts at `hosts` and those that connect to `listen`."""
    gateway_settings(config)
    trio.run(run_until_signal, partial(_gateway, config, hosts, listen), shutdown_limit(config))


async def _gateway(config: Config, hosts: Sequence[Path], listen: Path | None, stop: trio.Event) -> None:
    async with open_run() as run, open_switch(switch_settings(config)) as switch, trio.open_nursery() as nursery:
        for path in hosts:
            nursery.start_soon(keep_connected, path, partial(_attach, switch, path.name))
        if listen is not None:
            names = (f"{listen.name}#{number}" for number in count(1))
            nursery.start_soon(_accept, listen, run, lambda sock: _attach(switch, next(names), sock))
        # Who asks at once should not hear that there is no such model, only because the host is still starting.
        with trio.move_on_after(PATIENCE):
            await switch.wait_for(IDENTITY_CAP)
        async with trio.open_nursery() as http:
            show_addresses(await http.start(serve_gateway, Client(switch), LocalAdmin(switch), config, run, stop))
        nursery.cancel_scope.cancel()


async def _attach(switch: Switch, name: str, sock: socket) -> None:
    link = socket_link(sock, name)
    end = await link.run(switch.attach(link, name))
    _log.warning("host %s has gone (%s)", name, end.name.lower())


async def _accept(path: Path, run: Run, use: Use) -> None:
    """Give every connection to `path` to `use`, side by side, until cancelled."""
    run.announce(path)
    with UnixListener(path) as listener:
        run.guardian.add_path(path)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(use, await listener.accept())


async def keep_connected(path: Path, use: Use) -> None:
    """Give a connection to `path` to `use`, and another one when that has ended, until cancelled.

    The pause between two grows while none of them lasts: the other side may have turned us away.
    """
    complain_at = trio.current_time() + PATIENCE
    pause = RETRY_INTERVAL
    while True:
        try:
            sock = connect_unix(path)
        except SocketError as error:
            if trio.current_time() >= complain_at:
                _log.warning("%s (trying on)", error)
                complain_at = math.inf
        else:
            began = trio.current_time()
            await use(sock)
            ended = trio.current_time()
            complain_at = ended + PATIENCE
            pause = RETRY_INTERVAL if ended - began >= PATIENCE else min(2 * pause, PATIENCE)
        await trio.sleep(pause)
