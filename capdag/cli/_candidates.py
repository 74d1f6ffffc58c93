"""Every cap that a server with these settings would offer, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from capdag.config import Config
from capdag.relay import open_switch
from capdag.urn import CapUrn
from capdag.wire import IDENTITY_CAP

from ._failure import CallEndedError, ended_by
from ._learn import failures, learn_caps
from ._local import start_local_host
from ._roster import Roster, read_roster
from ._run import open_run
from ._settings import checked_models_folder, switch_settings
from ._signals import run_until_signal

CANCEL_LIMIT = 5.0
"""Seconds between Ctrl-C and the end of a cartridge that was being asked."""


class Candidate(NamedTuple):
    """A cap, and the id of the cartridge that has it."""

    owner: str
    cap: CapUrn


def find_candidates(config: Config, commands: Sequence[str]) -> tuple[list[Candidate], list[str]]:
    """Return the caps in the order in which a host offers them, and the notices: of the roster, and on cartridges that
    have not told what they can do.

    Starts no process unless a cartridge does not say beforehand what it can do; such are started once. Raises
    ConfigError as `read_roster` does, CallEndedError when interrupted.
    """
    roster = read_roster(config, checked_models_folder(config), commands)
    if not all(record.caps for record in roster.records):
        return _asked(config, roster)
    known = [Candidate(record.id, CapUrn.parse(cap["urn"])) for record in roster.records for cap in record.caps]
    return [*known, Candidate("identity", CapUrn.parse(IDENTITY_CAP))], roster.notices


def _asked(config: Config, roster: Roster) -> tuple[list[Candidate], list[str]]:
    found: list[Candidate] = []
    failed: list[str] = []
    number = trio.run(run_until_signal, partial(_ask, config, roster, found, failed), CANCEL_LIMIT)
    if number is not None:
        raise CallEndedError("interrupted; a cartridge was being asked what it can do", ended_by(number))
    return found, [*failed, *roster.notices]


async def _ask(config: Config, roster: Roster, found: list[Candidate], failed: list[str], stop: trio.Event) -> None:
    async with open_run() as run, open_switch(switch_settings(config)) as switch, trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_after, stop, nursery.cancel_scope)
        host = await start_local_host(nursery, switch, roster, run, config)
        await learn_caps(host, roster.records)
        found += [Candidate(capability.install_id, capability.urn) for capability in switch.capabilities()]
        failed += failures(host)
        await host.shutdown()
        nursery.cancel_scope.cancel()


async def _cancel_after(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()
