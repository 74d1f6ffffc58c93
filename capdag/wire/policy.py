"""Network policy: what a cartridge may reach (protocol-spec/wire.md, POLICY)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from capdag.errors import RemoteProtocolError

from .frame import Frame, FrameType, show_value


class NetworkPolicy(StrEnum):
    """`no_telemetry` allows third-party and own services; `full` telemetry as well; `offline` nothing."""

    OFFLINE = "offline"
    NO_TELEMETRY = "no_telemetry"
    FULL = "full"


def policy_frame(policy: NetworkPolicy) -> Frame:
    """Build the POLICY frame that goes down every link."""
    return Frame(FrameType.POLICY, 0, meta={"network": policy.value})


def read_policy(meta: Mapping[str, Any]) -> NetworkPolicy:
    """Read a POLICY. Raises RemoteProtocolError naming the word seen."""
    word = meta.get("network")
    if word not in list(NetworkPolicy):
        raise RemoteProtocolError(
            f"POLICY meta.network must be one of {', '.join(NetworkPolicy)}, not {show_value(word)}"
        )
    return NetworkPolicy(word)
