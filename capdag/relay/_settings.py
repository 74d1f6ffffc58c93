"""Settings of a switch."""

from __future__ import annotations

from typing import NamedTuple

from capdag.wire import DEFAULT_LIMITS, Limits, NetworkPolicy
from capdag.wire.requests import DEFAULT_TABLE_LIMIT


class SwitchSettings(NamedTuple):
    """Settings of a switch. Times are seconds; `limits` are this side's own, reduced to each host's.

    `notify_timeout` is for a new link's first frame, and `max_unproved` links at most may be on their way to their
    proof of identity. `cancel_deadline` is longer than a host's own grace, which ends in a kill and an honest terminal.
    `max_queued` requests may wait for one cap, each for `queue_timeout` at most, and for `outage_grace` while no host
    offers it; their callers hear of a new position every `position_interval` at most.
    """

    policy: NetworkPolicy = NetworkPolicy.NO_TELEMETRY
    limits: Limits = DEFAULT_LIMITS
    notify_timeout: float = 10.0
    identity_timeout: float = 10.0
    max_unproved: int = 64
    cancel_deadline: float = 40.0
    table_limit: int = DEFAULT_TABLE_LIMIT
    max_queued: int = 1024
    queue_timeout: float = 600.0
    outage_grace: float = 60.0
    position_interval: float = 1.0
