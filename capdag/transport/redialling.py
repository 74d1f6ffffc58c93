"""A link that is made again whenever it has ended (protocol-spec/links.md, Reconnecting)."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

import trio

from .addresses import Address
from .bytelink import ByteLink
from .credentials import Credentials
from .dialling import LinkTimes, RefusedLinkError, Use, dial
from .sockets import SocketError

PATIENCE = 5.0
"""Seconds that the other side may take for its start before it is said that it is not there."""

_log = logging.getLogger("capdag.links")


class Pauses(NamedTuple):
    """Seconds between two attempts: from `first`, doubled up to `longest` while no link has lasted `stable`.

    Each is shortened by a random part, up to half: many that lost one peer do not come back at once.
    """

    first: float = 0.2
    longest: float = 10.0
    stable: float = 5.0


class DialState(StrEnum):
    """What a dialler is doing."""

    WAITING = "waiting"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    PAUSING = "pausing"


class Dialler:
    """Keeps one link to an address. Raises ConfigError for an address or credentials that cannot work."""

    def __init__(
        self, address: Address, credentials: Credentials, times: LinkTimes, pauses: Pauses | None = None,
        random: Random | None = None,
    ) -> None:  # fmt: skip
        credentials.check_dialling(address)
        self.address = address
        self.state = DialState.WAITING
        self._credentials = credentials
        self._times = times
        self._pauses = pauses or Pauses()
        self._random = random or Random()
        self._links = 0
        self._failed_in_a_row = 0
        self._trouble = ""
        self._told = ""
        self._complain_at = math.inf

    async def keep(self, use: Use, when: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> None:
        """Give a link to `use`, and another one when that has ended, until cancelled.

        Each time it waits for `when()` before it connects.
        """

        async def connected(link: ByteLink) -> None:
            self.state = DialState.CONNECTED
            self._links += 1
            await use(link)

        self._complain_at = trio.current_time() + PATIENCE
        while True:
            self.state = DialState.WAITING
            await when()
            self.state = DialState.CONNECTING
            began = trio.current_time()
            try:
                await dial(self.address, self._credentials, self._times, connected)
            except RefusedLinkError as error:
                self._complain_at = -math.inf
                self._note_failure(str(error), error.kind)
            except SocketError as error:
                self._note_failure(str(error), str(error))
            else:
                self._note_end(trio.current_time() - began)
            self.state = DialState.PAUSING
            await trio.sleep(self._pause())

    def _note_failure(self, trouble: str, kind: str) -> None:
        self._failed_in_a_row += 1
        self._trouble = trouble
        if kind != self._told and trio.current_time() >= self._complain_at:
            _log.warning("%s (trying on)", trouble)
            self._told = kind

    def _note_end(self, lasted: float) -> None:
        self._trouble, self._told = "", ""
        self._complain_at = trio.current_time() + PATIENCE
        self._failed_in_a_row = 1 if lasted >= self._pauses.stable else self._failed_in_a_row + 1

    def _pause(self) -> float:
        """Return how long to wait after so many attempts in a row that came to nothing, or to little."""
        doublings = min(self._failed_in_a_row - 1, 30)
        whole = min(self._pauses.longest, self._pauses.first * float(2**doublings))
        return whole * self._random.uniform(0.5, 1.0)

    def snapshot(self) -> dict[str, Any]:
        """Return what is true now, as JSON values; `trouble` is why the last attempt failed, empty while it did not."""
        return {
            "address": str(self.address),
            "state": self.state.value,
            "links": self._links,
            "failed_in_a_row": self._failed_in_a_row if self.state is not DialState.CONNECTED else 0,
            "trouble": self._trouble if self.state is not DialState.CONNECTED else "",
        }
