"""The host half of a split server: cartridges for one engine at a time, kept warm between two."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from capdag.config import Config
from capdag.host import HostRuntime
from capdag.transport import ByteLink

from ._admin import LocalAdmin
from ._doors import Doors
from ._folders import admin_socket
from ._http import serve_admin, shutdown_limit
from ._learn import learn_caps
from ._reload import RosterReader
from ._report import show_roster
from ._roster import Roster, read_roster
from ._run import open_run
from ._settings import checked_models_folder, host_settings
from ._signals import run_until_signal

_log = logging.getLogger(__name__)


def run_host(settle: Callable[[], Config], commands: Sequence[str]) -> None:
    """Run a host until Ctrl-C or SIGTERM, for engines at the addresses of `[host.links]`. Raises ConfigError.

    `settle` reads the configuration, again for `capdag ps --reload`.
    """
    config = settle()
    folder = checked_models_folder(config)
    roster = read_roster(config, folder, commands)
    links = config.host.links
    doors = Doors(links, links.listen, links.connect)
    read = partial(RosterReader, settle=settle, commands=commands, records=roster.records)
    trio.run(run_until_signal, partial(_host, config, roster, folder, doors, read), shutdown_limit(config))


async def _host(
    config: Config,
    roster: Roster,
    folder: Path,
    doors: Doors,
    read: Callable[[HostRuntime], RosterReader],
    stop: trio.Event,
) -> None:
    async with open_run() as run, trio.open_nursery() as nursery:
        show_roster(roster, folder)
        host = HostRuntime(roster.records, None, run.guardian, host_settings(config))
        await nursery.start(host.run)
        admin = LocalAdmin(host=host, doors=doors, reader=read(host))
        nursery.start_soon(serve_admin, admin, admin_socket(f"host-{os.getpid()}"), run, stop)
        await nursery.start(learn_caps, host, roster.records)
        seat = Seat(host)
        await doors.open(nursery, run, seat.serve, seat.free)
        await stop.wait()
        seat.close()
        await host.shutdown()
        nursery.cancel_scope.cancel()


class Seat:
    """The place of the one engine that a host serves."""

    def __init__(self, host: HostRuntime) -> None:
        self._host = host
        self._engine: ByteLink | None = None
        self._free = trio.Event()
        self._free.set()
        self._closed = False

    async def serve(self, link: ByteLink) -> None:
        """Serve the engine at the far end of a link until that ends; one too many is turned away."""
        if self._closed:
            link.close()
            return
        if self._engine is not None:
            _log.warning("an engine at %s is turned away: that at %s is attached", link.name, self._engine.name)
            link.close()
            return
        self._engine, self._free = link, trio.Event()
        _log.info("an engine is attached at %s", link.name)
        try:
            await link.run(self._host.attach_relay(link))
        finally:
            self._engine = None
            self._free.set()
        warm = self._host.settings.keep_warm
        _log.info("the engine at %s has gone: %s; cartridges are kept warm for %g s", link.name, link.reason, warm)

    async def free(self) -> None:
        """Wait until no engine is attached."""
        await self._free.wait()

    def close(self) -> None:
        """Take no further engine: the host shuts down."""
        self._closed = True
