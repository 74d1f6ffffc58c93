"""The switch's state as plain data (protocol-spec/wire.md, protocol stats)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from capdag.wire import show_id
from capdag.wire.notify import Notice
from capdag.wire.request_life import RequestState

from ._flow import Flow, Stream
from ._masters import Master, Masters
from ._places import Install
from ._queue import Queue
from ._rows import Ended, Row, Rows


def snapshot(rows: Rows, masters: Masters, queue: Queue, now: float) -> dict[str, Any]:
    """Return requests, drops, stragglers, hosts, caps and what waits.

    `in` counts frames to the requester, `out` those to the handler.

    The totals of routing_gc stand for peers that evict rows of live requests. This switch never does.
    """
    return {
        "requests": {
            "active": [_active(row, now) for row in rows.live()],
            "recent_terminated": [_ended(ended) for ended in rows.recent],
            "total_registered": rows.registered_total,
            "terminated_by_kind": dict(rows.ended_by_kind),
        },
        **rows.counts.snapshot(),
        "routing_gc_runs_total": 0,
        "routing_gc_evicted_total": 0,
        "hosts": {master.name: _host(master) for master in masters.all()},
        "caps": {line.text: [master.name for master in line.places] for line in masters.lines()},
        "queue": queue.snapshot(),
    }


def _active(row: Row, now: float) -> dict[str, Any]:
    streams = [_stream(stream, row.answer, to_requester=True) for stream in row.answer.counted()]
    streams += [_stream(stream, row.body, to_requester=False) for stream in row.body.counted()]
    origin, destination = row.answer.sink, row.body.sink
    return {
        "xid": row.xid,
        "rid": show_id(row.rid),
        "phase": _phase(row),
        "is_peer": row.is_peer,
        "cap_urn": row.cap,
        "origin_master": origin.name if isinstance(origin, Master) else None,
        "destination_master": destination.name if isinstance(destination, Master) else None,
        "age_ms": _ms(now - row.created),
        "idle_ms": _ms(now - row.last),
        "children": len(row.children),
        "streams": streams,
    }


def _phase(row: Row) -> str:
    if row.state is RequestState.CANCELLED:
        return "cancelled"
    return "streaming" if row.answer.last_seq >= 0 else "created"


def _stream(stream: Stream, flow: Flow, *, to_requester: bool) -> dict[str, Any]:
    ahead, back = ("in", "out") if to_requester else ("out", "in")
    return {
        "stream_id": stream.stream_id,
        f"frames_{ahead}": stream.frames,
        f"frames_{back}": stream.replies,
        f"bytes_{ahead}": stream.bytes,
        f"bytes_{back}": 0,
        f"chunks_{ahead}": stream.chunks,
        f"chunks_{back}": 0,
        "credit_outstanding": flow.window + stream.granted - stream.chunks,
        "held": len(stream.held),
        "unbounded": stream.unbounded,
        "ended": stream.ended,
    }


def _ended(ended: Ended) -> dict[str, Any]:
    shown = {
        "xid": ended.xid,
        "rid": show_id(ended.rid),
        "kind": ended.kind,
        "is_peer": ended.is_peer,
        "cap_urn": ended.cap,
        "lifetime_ms": _ms(ended.lifetime),
        "frames_in": ended.frames_in,
        "frames_out": ended.frames_out,
        "bytes_in": ended.bytes_in,
        "bytes_out": ended.bytes_out,
    }
    if ended.cancel is not None:
        code, attribution, message = ended.cancel
        shown |= {"cancel_code": code, "cancel_class": attribution.value, "cancel_reason": message}
    return shown


def _host(master: Master) -> dict[str, Any]:
    notice = master.notice
    return {
        "state": master.state.value,
        "reason": master.reason,
        "limits": master.limits._asdict(),
        "caps": [line.text for line in master.lines.values()],
        "pools": {identity.id: _pools(install) for identity, install in master.installs.items()},
        "installed_cartridges": _installs(master, notice) if notice else [],
        "protocol_stats": notice.stats if notice else None,
        "host_id": notice.host_id if notice else None,
    }


def _installs(master: Master, notice: Notice) -> list[Mapping[str, Any]]:
    """Return the records as the host tells them. What ran at one that has gone is not known: it tells no stats."""
    return [{**record, "runtime_stats": {}} for record in notice.installs] if master.ended else notice.installs


def _pools(install: Install) -> dict[str, Any]:
    """What this switch has in each pool; a size of 0 means no bound."""
    return {
        name: {"size": 0 if pool.size == inf else pool.size, "active": pool.active}
        for name, pool in install.pools.items()
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
