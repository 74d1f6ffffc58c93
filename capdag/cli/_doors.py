"""The links of one half: the addresses it listens at and those it connects to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from capdag.config import LinksConfig
from capdag.errors import ConfigError
from capdag.transport import Address, Scheme
from capdag.transport.dialling import Use
from capdag.transport.listening import Doorway
from capdag.transport.redialling import Dialler
from capdag.transport.sockets import InUseError

from ._failure import TakenError
from ._links import read_addresses, read_credentials, read_times
from ._run import Run
from ._saying import say


class Doors:
    """Every address of a half. Raises ConfigError for what cannot work, before anything is opened.

    `silence` is how many seconds the other side of a link may say nothing where it must say something.
    """

    def __init__(self, table: LinksConfig, listen: Sequence[str], dial: Sequence[str]) -> None:
        listening, dialled = read_addresses(listen), read_addresses(dial)
        for address, times_given in Counter([*listening, *dialled]).items():
            if times_given > 1:
                raise ConfigError(f"{address} is given {times_given} times; give each address once")
        credentials, times = read_credentials(table, [*listening, *dialled]), read_times(table)
        self.silence = times.silence
        self._doorways = [Doorway(address, credentials, times) for address in listening]
        self._diallers = [Dialler(address, credentials, times) for address in dialled]

    @property
    def dialled(self) -> list[Address]:
        """The addresses that this half connects to."""
        return [dialler.address for dialler in self._diallers]

    async def open(
        self, nursery: trio.Nursery, run: Run, use: Use, when: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    ) -> None:
        """Give `use` every link that comes about, in `nursery`; returns once all doorways listen.

        `when` is waited for before each attempt to connect. Raises TakenError for an address in use, SocketError for
        another that cannot be bound.
        """
        for dialler in self._diallers:
            nursery.start_soon(dialler.keep, use, when)
        for doorway in self._doorways:
            path = Path(doorway.address.path) if doorway.address.scheme is Scheme.UNIX else None
            if path is not None:
                run.announce(path)
            try:
                address = await nursery.start(doorway.serve, use)
            except InUseError as error:
                raise TakenError(str(error)) from None
            if path is not None:
                run.guardian.add_path(path)
            say(f"links are taken at {address}")

    def snapshot(self) -> dict[str, Any]:
        """Return what is true now, as JSON values."""
        return {
            "dialled": [dialler.snapshot() for dialler in self._diallers],
            "listening": [
                {"address": str(doorway.address), "turned_away": doorway.strangers.snapshot()}
                for doorway in self._doorways
            ],
        }
