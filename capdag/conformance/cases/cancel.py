"""CANCEL, in every state of a request."""

from __future__ import annotations

import json
import uuid

from capdag.errors import AttributionClass
from capdag.wire import (
    USER_CANCEL,
    CancelReason,
    Frame,
    FrameType,
    LogRecord,
    body_end_frame,
    cancel_frame,
    credit_frame,
    encode_value,
    log_frame,
    read_pools,
)

from .._bench import Bench
from .._case import BreachError, CaseFailed, CaseSkipped, case
from .._exchange import Exchange
from .._session import Session, chunk_frame
from .credit import LIMITS, starved

_REASON = CancelReason("TOO_LATE_FOR_IT", AttributionClass.RESOURCE, "the caller's time is over")
"""With a code that errors.md does not have: any text is copied."""


@case(
    "cancel-idle",
    "CANCEL ends a request whose body is still open: ERR with the reason's code and class",
    "wire.md L38",
    remedy="on CANCEL end the request's input, tell its handler, and send one ERR CANCELLED / user",
)
async def cancel_idle(bench: Bench) -> None:
    session = await bench.shared()
    exchange = bench.open(session)
    await session.write(exchange, 0, encode_value(b"begun"))
    session.cancel(exchange, USER_CANCEL)
    await bench.cancelled(session, exchange, "CANCELLED", AttributionClass.USER)


@case(
    "cancel-reason",
    "the ERR has the code that CANCEL gives, any text, and its class, one of the five",
    "wire.md, Cancel; L38",
    remedy="copy code and attribution_class of CANCEL's meta; CANCELLED and internal where one is absent or wrong",
)
async def cancel_reason(bench: Bench) -> None:
    session = await bench.shared()
    exchange = bench.open(session)
    session.cancel(exchange, _REASON)
    await bench.cancelled(session, exchange, _REASON.code, _REASON.attribution)


@case(
    "cancel-blocked",
    "CANCEL ends a request whose answer waits for credit",
    "wire.md L32, L38",
    remedy="a sender that waits for credit stops waiting at CANCEL",
)
async def cancel_blocked(bench: Bench) -> None:
    session = await bench.shared(LIMITS)
    async with starved(bench, session) as exchange:
        await session.settle()
        session.cancel(exchange, USER_CANCEL)
        await bench.cancelled(session, exchange, "CANCELLED", AttributionClass.USER)
        await session.lives_on()


@case(
    "cancel-working",
    "CANCEL ends the work of the cap that is named, or of one whose answer is a list",
    "wire.md L38, L41",
    remedy="look between two steps of the work whether the request is cancelled: the host kills after 5 s",
)
async def cancel_working(bench: Bench) -> None:
    await bench.need_worker()
    session = await bench.shared(LIMITS)
    exchange = await bench.work(session, grants=False)
    await session.until(
        lambda: exchange.chunks > 0 or not exchange.live or exchange.fault is not None, "the first CHUNK"
    )
    session.cancel(exchange, USER_CANCEL)
    await bench.cancelled(session, exchange, "CANCELLED", AttributionClass.USER)


@case(
    "cancel-queued",
    "CANCEL ends a request that waits for room in its pool, and the one before it goes on",
    "wire.md, Pools; L38",
    remedy="take the request out of the queue and send ERR with the reason",
)
async def cancel_queued(bench: Bench) -> None:
    async with bench.session() as session:
        first, second = await _queue(bench, session)
        session.cancel(second, USER_CANCEL)
        await bench.cancelled(session, second, "CANCELLED", AttributionClass.USER)
        await bench.release(session, first)


@case(
    "queue",
    "a request that has no room says LOG queued, and LOG dequeued when its turn comes",
    "wire.md, Pools",
    remedy="send LOG queued (class internal) at once, take the body meanwhile, and LOG dequeued before the answer",
)
async def queue(bench: Bench) -> None:
    async with bench.session() as session:
        first, second = await _queue(bench, session)
        await bench.release(session, first)
        await session.until(lambda: "dequeued" in _levels(second) or second.fault is not None, "LOG dequeued")
        await bench.release(session, second)


async def _queue(bench: Bench, session: Session) -> tuple[Exchange, Exchange]:
    """Make a pool one place wide and ask for two. Skips where the pool takes no size."""
    if bench.roles.holder is None:
        raise CaseSkipped("no cap but identity takes a single argument")
    pool = str(bench.roles.holder.urn)
    reply = await session.beat({"desired_capacities": json.dumps({pool: 1}).encode()})
    if reply.type is FrameType.ERR or read_pools(reply.meta.get("pools"))[pool].configured != 1:
        raise CaseSkipped("the cartridge sets no pool sizes")
    first, second = bench.hold(session), bench.hold(session)
    await session.until(
        lambda: "queued" in _levels(second) or not second.live or second.fault is not None, "LOG queued"
    )
    if second.fault is not None:
        raise BreachError(second.fault)
    if not second.live:
        raise CaseFailed("the second of two requests in a pool of one has ended")
    return first, second


def _levels(exchange: Exchange) -> list[object]:
    return [view.meta.get("level") for view in exchange.views if view.type is FrameType.LOG]


@case(
    "cancel-isolation",
    "the CANCEL of one request leaves the others alone",
    "wire.md L38, L41",
    remedy="cancel by RID, not by process",
)
async def cancel_isolation(bench: Bench) -> None:
    session = await bench.shared()
    exchanges = [bench.open(session) for _ in range(3)]
    for position, exchange in enumerate(exchanges):
        await session.write(exchange, 0, encode_value(b"%d" % position))
    session.cancel(exchanges[1], USER_CANCEL)
    await session.ended(exchanges[1], "the terminal of a cancelled request")
    for position in (0, 2):
        exchange = exchanges[position]
        session.close(exchange, 1)
        session.finish(exchange)
        await bench.succeeded(session, exchange)
        if exchange.data != b"%d" % position:
            raise CaseFailed(f"the answer of a bystander is {exchange.data[:40]!r}")


@case(
    "strays",
    "frames of requests that are not live, CANCEL too, are counted and ignored",
    "wire.md, Errors; L19, L41",
    remedy="look the RID up first; what is not there is no error",
)
async def strays(bench: Bench) -> None:
    session = await bench.shared()
    rid, xid = uuid.uuid4().bytes, 99
    session.watch.strays.add(rid)
    frames = [
        cancel_frame(rid, USER_CANCEL, xid=xid),
        chunk_frame(rid, 0, encode_value(b"late")),
        credit_frame(rid, "out", 1, "response", xid=xid),
        log_frame(rid, LogRecord("info", "a requester's own", attribution=AttributionClass.INTERNAL), xid=xid),
        body_end_frame(rid, xid=xid),
        Frame(FrameType.CLOSE_STREAM, rid),
    ]
    for frame in frames:
        frame.routing_id = xid
        session.send(frame)
    await session.settle()
    await session.lives_on()


CASES = (
    cancel_idle, cancel_reason, cancel_blocked, cancel_working, cancel_queued, queue, cancel_isolation, strays,
)  # fmt: skip
