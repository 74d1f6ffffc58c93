"""Pools: how much work a cartridge takes at once (protocol-spec/wire.md, Pools)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError

from .documents import read_json
from .frame import show_value

ALL_POOL = "all"


class PoolState(NamedTuple):
    """Counts of one pool; 0 means unlimited for `declared`, `configured` and `available`."""

    declared: int = 0
    configured: int = 0
    active: int = 0
    queued: int = 0
    available: int | None = None
    caps: tuple[str, ...] | None = None

    @property
    def effective(self) -> int:
        """Requests that may run at once: the smaller of configured and available; 0 for no bound."""
        bounds = [bound for bound in (self.configured, self.available) if bound]
        return min(bounds) if bounds else 0

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the wire; optional parts are left out when unset."""
        shown: dict[str, Any] = {
            "declared": self.declared,
            "configured": self.configured,
            "active": self.active,
            "queued": self.queued,
        }
        if self.available is not None:
            shown["available"] = self.available
        if self.caps is not None:
            shown["caps"] = list(self.caps)
        return shown


Pools = Mapping[str, PoolState]


def write_pools(pools: Pools) -> bytes:
    """Return the JSON bytes that HELLO and HEARTBEAT carry."""
    return json.dumps({name: state.as_json() for name, state in pools.items()}, separators=(",", ":")).encode()


def read_pools(data: object) -> dict[str, PoolState]:
    """Read a pool map. Raises RemoteProtocolError naming the pool and the field at fault."""
    return pools_of(read_json(data, "pools"))


def pools_of(parsed: object) -> dict[str, PoolState]:
    """Read a pool map that was part of a larger JSON document. Raises RemoteProtocolError as `read_pools` does."""
    if not isinstance(parsed, dict):
        raise RemoteProtocolError(f"pools must be a JSON object, not {type(parsed).__name__}")
    return {name: _read_pool(name, state) for name, state in parsed.items()}


def _read_pool(name: str, state: object) -> PoolState:
    if not isinstance(state, dict):
        raise RemoteProtocolError(f"pool {show_value(name)} must be a JSON object, not {type(state).__name__}")
    for field in ("declared", "configured", "active", "queued"):
        value = state.get(field)
        if type(value) is not int or value < 0:
            raise RemoteProtocolError(
                f"pool {show_value(name)} needs {field} as an integer of at least 0, not {show_value(value)}"
            )
    available, caps = state.get("available"), state.get("caps")
    return PoolState(
        state["declared"],
        state["configured"],
        state["active"],
        state["queued"],
        available if type(available) is int and available >= 0 else None,
        tuple(map(str, caps)) if isinstance(caps, list) else None,
    )
