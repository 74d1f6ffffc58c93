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
from capdag.transport.background import background
from capdag.transport.strangers import Hush

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

TURNED_AWAY_INTERVAL = 60.0
"""Seconds between two lines about engines that are turned away: each comes again and again."""

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
        self._hush = Hush(TURNED_AWAY_INTERVAL)

    async def serve(self, link: ByteLink) -> None:
        """Serve the engine at the far end of a link until that ends; one too many is turned away."""
        if self._closed:
            link.close()
            return
        if self._engine is not None:
            self._turn_away(link, self._engine)
            return
        self._engine, self._free = link, trio.Event()
        try:
            async with background(partial(_tell, link)):
                await link.run(self._host.attach_relay(link))
        finally:
            self._engine = None
            self._free.set()
        if not link.heard.is_set():  # no engine then, and it was not told of
            return
        warm = self._host.settings.keep_warm
        _log.info("the engine at %s has gone: %s; cartridges are kept warm for %g s", link.name, link.reason, warm)

    def _turn_away(self, link: ByteLink, engine: ByteLink) -> None:
        if self._hush.passes(None):
            _log.warning(
                "an engine at %s is turned away: that at %s is attached%s",
                link.name, engine.name, self._hush.rest(None),
            )  # fmt: skip
        link.close()

    async def free(self) -> None:
        """Wait until no engine is attached."""
        await self._free.wait()

    def close(self) -> None:
        """Take no further engine: the host shuts down."""
        self._closed = True


async def _tell(link: ByteLink) -> None:
    """Tell of an engine once it has said something: before that it may be a stranger, or refuse this host."""
    await link.heard.wait()
    _log.info("an engine is attached at %s", link.name)
