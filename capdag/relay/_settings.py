"""Settings of a switch."""

from __future__ import annotations

from typing import NamedTuple

from capdag.wire import DEFAULT_LIMITS, Limits, NetworkPolicy
from capdag.wire.requests import DEFAULT_TABLE_LIMIT


class SwitchSettings(NamedTuple):
    """Settings of a switch. Times are seconds; `limits` are this side's own, reduced to each host's.

    `cancel_deadline` is longer than a host's own grace, which ends in a kill and an honest terminal.
    """

    policy: NetworkPolicy = NetworkPolicy.NO_TELEMETRY
    limits: Limits = DEFAULT_LIMITS
    identity_timeout: float = 10.0
    cancel_deadline: float = 40.0
    table_limit: int = DEFAULT_TABLE_LIMIT
