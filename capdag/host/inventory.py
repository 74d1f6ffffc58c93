"""What the host advertises: RELAY_NOTIFY and the records in it (protocol-spec/host.md, Advertisement)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from capdag.wire import ALL_POOL, Frame, PoolState
from capdag.wire.notify import notify_frame

from .cartridge import Cartridge
from .exchange import Exchange
from .lifecycle import SERVING, State

_NO_POOL = PoolState()


def build_notify(exchange: Exchange, cartridges: Iterable[Cartridge]) -> Frame:
    """Build the RELAY_NOTIFY of this moment. A host that is closing offers nothing."""
    installs: list[Mapping[str, Any]] = []
    if exchange.closing is None:
        installs = [_record(cartridge) for cartridge in cartridges]
    return notify_frame(exchange.limits, installs, exchange.snapshot(), exchange.host_id)


def _record(cartridge: Cartridge) -> dict[str, Any]:
    manifest = cartridge.manifest
    record: dict[str, Any] = {
        "registry_url": manifest.registry_url if manifest is not None else None,
        "id": cartridge.id,
        "channel": manifest.channel if manifest is not None else "release",
        "version": manifest.version if manifest is not None else "",
        "sha256": cartridge.sha256,
    }
    if cartridge.state is State.BROKEN:
        record["attachment_error"] = {
            "kind": "handshake_failed",
            "message": cartridge.trouble.message if cartridge.trouble is not None else "the handshake failed",
            "detected_at_unix_seconds": int(cartridge.trouble_at_unix),
        }
    elif cartridge.state is not State.UNHEALTHY:
        record["cap_groups"] = cartridge.groups
    record["runtime_stats"] = _stats(cartridge)
    return record


def _stats(cartridge: Cartridge) -> dict[str, Any]:
    reported = cartridge.reported
    return {
        "running": cartridge.state in SERVING,
        "pid": cartridge.pid,
        "active_request_count": len(cartridge.rows),
        "peer_request_count": len(cartridge.calls),
        "memory_footprint_mb": reported.get("footprint_mb", 0),
        "memory_rss_mb": reported.get("rss_mb", 0),
        "last_heartbeat_unix_seconds": None if cartridge.beat_at_unix is None else int(cartridge.beat_at_unix),
        "restart_count": cartridge.restarts,
        "protocol_drops_total": reported.get("drops_total", 0),
        "pools": {name: state.as_json() for name, state in _pools(cartridge).items()},
    }


def _pools(cartridge: Cartridge) -> dict[str, PoolState]:
    """Return the reported pools, and an unlimited one for every cap and for `all` that was not reported."""
    needed = map(str, cartridge.caps)
    return {**dict.fromkeys([*needed, ALL_POOL], _NO_POOL), **cartridge.pools}
