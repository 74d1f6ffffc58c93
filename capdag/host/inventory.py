"""What the host advertises: RELAY_NOTIFY and the records in it (protocol-spec/host.md, Advertisement)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capdag.errors import AttributionClass
from capdag.wire import ALL_POOL, Failure, FrameView, PoolState, view_of
from capdag.wire.notify import notify_frame, record_size

from .cartridge import Cartridge
from .exchange import Exchange
from .lifecycle import SERVING, State

_NO_POOL = PoolState()

_HEAD_ROOM = 8
"""By how much the CBOR heads of a notice may grow with what it names (bytes)."""

_LONGEST = 2_000
"""Longest message of an attachment_error (characters)."""


def build_notify(exchange: Exchange, cartridges: Iterable[Cartridge]) -> FrameView:
    """Build the RELAY_NOTIFY of this moment. A host that is closing offers nothing.

    It always fits the link: where not all can be named, the cartridges that need most are named without what they
    offer, and that is told.
    """
    if exchange.closing is not None:
        return _notice(exchange, [])
    named = list(cartridges)
    records: list[Mapping[str, Any]] = [_record(cartridge) for cartridge in named]
    whole = _notice(exchange, records)
    return whole if len(whole.body) <= exchange.up_max_frame else _notice(exchange, _fitting(exchange, named, records))


def _notice(exchange: Exchange, records: list[Mapping[str, Any]]) -> FrameView:
    return view_of(notify_frame(exchange.limits, records, exchange.snapshot(), exchange.host_id))


def _fitting(
    exchange: Exchange, cartridges: Sequence[Cartridge], records: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the records in order: what fits, the smallest first, and of the others what fits without caps."""
    room = exchange.up_max_frame - len(_notice(exchange, []).body) - _HEAD_ROOM
    sizes = list(map(record_size, records))
    now = int(exchange.wall_clock())
    bare = [_bare(cartridge, size, now) for cartridge, size in zip(cartridges, sizes, strict=True)]
    bare_sizes = [min(size, record_size(record)) for record, size in zip(bare, sizes, strict=True)]
    chosen: dict[int, Mapping[str, Any]] = {}
    for place, size in enumerate(bare_sizes):
        if size <= room:
            room -= size
            chosen[place] = bare[place]
    for place in sorted(chosen, key=sizes.__getitem__):
        more = sizes[place] - bare_sizes[place]
        if more <= room:
            room -= more
            chosen[place] = records[place]
    for place, cartridge in enumerate(cartridges):
        if chosen.get(place) is not records[place]:
            text = _left_out(sizes[place])
            exchange.tell_trouble(cartridge, "left out", Failure("NO_HANDLER", AttributionClass.ENVIRONMENT, text))
    return [chosen[place] for place in sorted(chosen)]


def _left_out(size: int) -> str:
    return (
        "it is not offered: what all cartridges of this host offer is longer than one frame, and this one, which needs "
        f"{size} bytes, is among the longest (name fewer caps, write less documentation, or serve it by another host)"
    )


def _bare(cartridge: Cartridge, size: int, now: int) -> dict[str, Any]:
    record = _identity(cartridge)
    record["attachment_error"] = {"kind": "quarantined", "message": _left_out(size), "detected_at_unix_seconds": now}
    record["runtime_stats"] = {**_stats(cartridge), "pools": {}}
    return record


def _identity(cartridge: Cartridge) -> dict[str, Any]:
    manifest = cartridge.manifest
    return {
        "registry_url": manifest.registry_url if manifest is not None else None,
        "id": cartridge.id,
        "channel": manifest.channel if manifest is not None else "release",
        "version": manifest.version if manifest is not None else "",
        "sha256": cartridge.sha256,
    }


def _record(cartridge: Cartridge) -> dict[str, Any]:
    record = _identity(cartridge)
    if cartridge.state is State.BROKEN:
        record["attachment_error"] = {
            "kind": "handshake_failed",
            "message": cartridge.trouble.message[:_LONGEST]
            if cartridge.trouble is not None
            else "the handshake failed",
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
