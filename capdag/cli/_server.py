"""`capdag serve` in one process (design: Shape in trio)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from capdag.client import Client
from capdag.config import Config, GatewayLinks
from capdag.gateway import Readiness
from capdag.host import HostRuntime
from capdag.relay import open_switch

from ._admin import LocalAdmin
from ._http import serve_gateway, shutdown_limit
from ._learn import learn_caps
from ._local import start_local_host
from ._reload import RosterReader
from ._report import show_addresses, show_roster
from ._roster import Roster, read_roster
from ._run import open_run
from ._settings import checked_models_folder, switch_settings
from ._signals import run_until_signal

if TYPE_CHECKING:
    from ._doors import Doors


def run_server(settle: Callable[[], Config], commands: Sequence[str]) -> None:
    """Serve until Ctrl-C or SIGTERM. `settle` reads the configuration, again for `capdag ps --reload`.

    Raises CapdagErrors, alone or in a group, for what keeps it from serving.
    """
    config = settle()
    limit = shutdown_limit(config)
    folder = checked_models_folder(config)
    roster = read_roster(config, folder, commands)
    read = partial(RosterReader, settle=settle, commands=commands, records=roster.records)
    doors = _doors(config.gateway.links)
    trio.run(run_until_signal, partial(_serve, config, roster, folder, read, doors), limit)


def _doors(links: GatewayLinks) -> Doors | None:
    """Return the addresses of hosts elsewhere; None, and what links stand on is not loaded, if there are none."""
    if not links.accept and not links.hosts:
        return None
    from ._doors import Doors

    return Doors(links, links.accept, links.hosts)


async def _serve(
    config: Config,
    roster: Roster,
    folder: Path,
    read: Callable[[HostRuntime], RosterReader],
    doors: Doors | None,
    stop: trio.Event,
) -> None:
    async with open_run() as run, open_switch(switch_settings(config)) as switch, trio.open_nursery() as nursery:
        host = await start_local_host(nursery, switch, roster, run, config)
        admin = LocalAdmin(switch, host, doors=doors, reader=read(host))
        async with trio.open_nursery() as http:
            # The port is taken at once, or found to be taken; requests are told to come again until the caps are known.
            start = _Start()
            addresses = await http.start(
                serve_gateway, Client(switch), admin, config, run, stop, lambda: start.readiness
            )
            show_roster(roster, folder)
            if doors is not None:
                from ._gateway_half import attach_hosts

                await attach_hosts(switch, doors, nursery, run, stop)
            await nursery.start(start.learn, host, roster)
            show_addresses(addresses)
        await host.shutdown()
        nursery.cancel_scope.cancel()


class _Start:
    """The start of a server; `readiness` says how far it is."""

    def __init__(self) -> None:
        self.readiness = Readiness.STARTING

    async def learn(self, host: HostRuntime, roster: Roster, *, task_status: trio.TaskStatus[None]) -> None:
        """Learn what the cartridges can do; has started when nobody has to wait for those that are slow."""
        async with trio.open_nursery() as nursery:
            await nursery.start(learn_caps, host, roster.records)
            self.readiness = Readiness.LEARNING
            task_status.started()
        self.readiness = Readiness.READY
