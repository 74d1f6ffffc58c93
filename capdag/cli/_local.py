"""A host in this process."""

from __future__ import annotations

import trio

from capdag.config import Config
from capdag.host import HostRuntime
from capdag.relay import Switch
from capdag.transport import local_link_pair

from ._query import LOCAL
from ._roster import Roster
from ._run import Run
from ._settings import host_settings


async def start_local_host(
    nursery: trio.Nursery, switch: Switch, roster: Roster, run: Run, config: Config
) -> HostRuntime:
    """Run a host in `nursery` that `switch` reaches by plain calls; returns once it has said what it offers."""
    upper, lower = local_link_pair(LOCAL)
    host = HostRuntime(roster.records, lower, run.guardian, host_settings(config))
    lower.connect(host.receiver)
    upper.connect(switch.attach(upper, LOCAL))
    await nursery.start(host.run)
    return host
