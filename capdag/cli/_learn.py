"""What a cartridge can do that has told nobody yet: it is started at once, beside what is served already."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import trio

from capdag.host import CartridgeRecord, HostRuntime, State
from capdag.printable import paragraph

SLOW = 3.0
"""Seconds after which nobody waits any more for a cartridge that has not told its caps, and it is named."""

_LOOK_AGAIN = 0.05

_log = logging.getLogger(__name__)


async def learn_caps(
    host: HostRuntime,
    records: Sequence[CartridgeRecord],
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Start every cartridge without caps, and return when each has told its manifest or has failed.

    Has started when that is so of all, or after `SLOW` seconds: who asks at once finds what starts fast. The host
    bounds a start and logs why one fails; such a cartridge stays in its snapshot and may be reset.
    """
    names = [record.id for record in records if not record.caps]
    for name in names:
        host.start(name)
    with trio.move_on_after(SLOW):
        await _wait_for(host, names)
    task_status.started()
    for cartridge in _starting(host, names):
        limit = host.settings.handshake_timeout
        _log.warning("waiting for cartridge %s to say what it can do (up to %g s)", cartridge["id"], limit)
    await _wait_for(host, names)


def failures(host: HostRuntime) -> list[str]:
    """Return why each cartridge that has not told its caps has not, where it has failed."""
    found = []
    for cartridge in host.snapshot()["cartridges"]:
        trouble: str | None = cartridge["trouble"]
        if trouble and not cartridge["caps"]:
            found.append(paragraph(trouble.partition(": ")[2] if cartridge["pause"] else trouble))
    return found


async def _wait_for(host: HostRuntime, names: Sequence[str]) -> None:
    while any(_starting(host, names)):  # noqa: ASYNC110 - the host has no event for it
        await trio.sleep(_LOOK_AGAIN)


def _starting(host: HostRuntime, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    cartridges = host.snapshot()["cartridges"]
    return (facts for facts in cartridges if facts["id"] in names and facts["state"] == State.STARTING)
