"""Heartbeats and pools."""

from __future__ import annotations

import json

from capdag.errors import RemoteProtocolError
from capdag.wire import ALL_POOL, USER_CANCEL, FrameType, FrameView, PoolState, read_pools

from .._bench import Bench, check_err
from .._case import CaseFailed, CaseSkipped, case
from .credit import LIMITS, starved

_COUNTS = ("drops_total", "stragglers_total", "overruns_total")


@case(
    "heartbeat",
    "a heartbeat comes back under its id, with pools and counts",
    "wire.md, Heartbeats; L44",
    remedy="send HEARTBEAT with the probe's id and meta: pools (bytes of JSON), drops_total, stragglers_total, "
    "overruns_total",
)
async def heartbeat(bench: Bench) -> None:
    reply = await (await bench.shared()).beat()
    _pools(reply)
    for name in _COUNTS:
        if type(reply.meta.get(name)) is not int:
            raise CaseFailed(f"meta.{name} is {reply.meta.get(name)!r}, and must be an integer")


@case(
    "heartbeat-once",
    "a probe is answered once, and the reply to a probe of the cartridge's own is not",
    "wire.md, Heartbeats; L45",
    remedy="keep the ids of the probes you send, and answer no HEARTBEAT that comes back under one of them",
)
async def heartbeat_once(bench: Bench) -> None:
    session = await bench.talk()
    await session.beat()
    await session.settle()
    await session.lives_on()


@case(
    "heartbeat-load",
    "heartbeats are answered whatever the handlers do",
    "wire.md L44",
    remedy="answer heartbeats where frames are read, which is no place for work, nor to wait for credit",
)
async def heartbeat_load(bench: Bench) -> None:
    session = await bench.shared(LIMITS)
    async with starved(bench, session):
        for _ in range(3):
            await session.beat(case="heartbeat-load")


@case(
    "pools-active",
    "a running request is counted as active in its cap's pool and in `all`",
    "wire.md, Pools",
    remedy="count requests from REQ to their terminal",
)
async def pools_active(bench: Bench) -> None:
    session = await bench.shared()
    before = _pools(await session.beat())
    exchange = bench.hold(session)
    busy = _pools(await session.beat())
    await bench.release(session, exchange)
    assert bench.roles.holder is not None
    for name in (str(bench.roles.holder.urn), ALL_POOL):
        if name not in before or name not in busy or busy[name].active != before[name].active + 1:
            raise CaseFailed(f"pool {name} says {busy.get(name)} while a request runs, and said {before.get(name)}")


@case(
    "pools-idle",
    "when all requests have ended, no pool has one active or queued",
    "wire.md, Pools",
    remedy="give the places of a request back with its terminal, however it ends",
)
async def pools_idle(bench: Bench) -> None:
    session = await bench.talk()
    exchange = bench.open(session)
    session.cancel(exchange, USER_CANCEL)
    try:
        await session.ended(exchange, "the terminal of a cancelled request")
    except CaseFailed as error:
        raise CaseSkipped(f"{error}: see the case cancel-idle") from None
    await session.settle()
    for name, pool in _pools(await session.beat()).items():
        if pool.active or pool.queued:
            raise CaseFailed(f"pool {name} says active {pool.active}, queued {pool.queued}")


@case(
    "pool-size",
    "a heartbeat that asks for a pool's size gets it, or UNKNOWN_POOL",
    "wire.md, Heartbeats",
    remedy="take the size and report it as configured, or refuse with ERR UNKNOWN_POOL; do not overlook it",
)
async def pool_size(bench: Bench) -> None:
    session = await bench.shared()
    if not bench.roles.others:
        raise CaseSkipped("the cartridge has no cap but identity")
    pool = str(bench.roles.others[0].urn)
    reply = await session.beat({"desired_capacities": json.dumps({pool: 3}).encode()})
    if reply.type is FrameType.ERR:
        check_err(reply, "UNKNOWN_POOL")
        return
    configured = _pools(reply)[pool].configured
    await session.beat({"desired_capacities": json.dumps({pool: 0}).encode()})
    if configured != 3:
        raise CaseFailed(f"a size of 3 was asked for, and {configured} is reported")


@case(
    "unknown-pool",
    "a size for a pool that is not there is refused with ERR UNKNOWN_POOL under the probe's id",
    "wire.md, Heartbeats",
    remedy="look at desired_capacities of a heartbeat; change nothing if one name is unknown",
)
async def unknown_pool(bench: Bench) -> None:
    session = await bench.shared()
    reply = await session.beat({"desired_capacities": b'{"no such pool": 1}'})
    check_err(reply, "UNKNOWN_POOL")
    await session.lives_on()


def _pools(reply: FrameView) -> dict[str, PoolState]:
    try:
        return read_pools(reply.meta.get("pools"))
    except RemoteProtocolError as error:
        raise CaseFailed(str(error)) from None


CASES = (heartbeat, heartbeat_once, heartbeat_load, pools_active, pools_idle, pool_size, unknown_pool)
