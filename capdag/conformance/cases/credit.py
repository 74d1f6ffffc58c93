"""The windows of streams, in both directions."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from capdag.wire import DEFAULT_LIMITS, encode_value

from .._bench import SMALL, Bench
from .._case import BreachError, CaseFailed, CaseSkipped, case
from .._exchange import Exchange
from .._session import Session, payloads_of

_WINDOWS = 3
"""How many of them are sent: the first goes out, the second by a grant, the third by one that is not clamped."""

_MANY = 5

LIMITS = DEFAULT_LIMITS._replace(max_chunk=SMALL, initial_credit=4)
"""CHUNKs so small that an echo cannot join what it is given into less than a window of them."""


@asynccontextmanager
async def starved(bench: Bench, session: Session) -> AsyncIterator[Exchange]:
    """Ask for more than a window, and grant nothing: in the block the window is used up."""
    exchange = bench.ask(session)
    exchange.grants = False
    size, window = min(SMALL, session.limits.max_chunk), session.limits.initial_credit
    data = bytes(_WINDOWS * window * size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.give, exchange, bench.roles.echo.media, payloads_of(data, size), math.inf)
        await session.until(
            lambda: exchange.chunks >= window or not exchange.live or exchange.fault is not None,
            f"the first window of {window} CHUNKs",
        )
        if exchange.terminal is not None:
            raise CaseFailed(f"{_WINDOWS * window} CHUNKs went in, and the answer ended after {exchange.chunks}")
        yield exchange
        exchange.grants = True
        if exchange.live and not exchange.fault:
            session.grant(exchange, window)
            with suppress(CaseFailed, BreachError):  # the case has its verdict; a session that is spoiled is not kept
                await session.ended(exchange)
        nursery.cancel_scope.cancel()


@case(
    "credit-window",
    "a window of CHUNKs is sent and no more; each grant lets one more go",
    "wire.md L27, L31",
    remedy="begin each stream with initial_credit of HELLO, take one for each CHUNK, and wait at 0",
)
async def credit_window(bench: Bench) -> None:
    session = await bench.shared(LIMITS)
    async with starved(bench, session) as exchange:
        await session.settle()
        window = exchange.chunks
        session.grant(exchange, 1)
        await session.until(
            lambda: exchange.chunks > window or exchange.fault is not None, "the CHUNK that a grant of 1 allows"
        )
        await session.settle()


@case(
    "credit-again",
    "a sender that has waited at 0 goes on to the end once it is granted",
    "wire.md L27, L32",
    remedy="wake the sender of the stream that CREDIT names",
)
async def credit_again(bench: Bench) -> None:
    session = await bench.shared(LIMITS)
    async with starved(bench, session) as exchange:
        await session.settle()
        exchange.grants = True
        session.grant(exchange, session.limits.initial_credit)
        await bench.succeeded(session, exchange)


@case(
    "credit-clamp",
    "a grant lifts no sender above its window",
    "wire.md L30",
    remedy="after CREDIT keep min(initial_credit, what was left + the grant)",
)
async def credit_clamp(bench: Bench) -> None:
    session = await bench.shared(LIMITS)
    async with starved(bench, session) as exchange:
        await session.settle()
        if exchange.fault is not None:
            raise BreachError(exchange.fault)
        window = session.limits.initial_credit
        exchange.blame["credit-window"] = "credit-clamp"
        session.grant(exchange, 2 * window)
        try:
            await session.until(lambda: exchange.chunks >= 2 * window or exchange.fault is not None, "a second window")
        except CaseFailed as error:
            raise CaseSkipped(f"{error}: see the case credit-again") from None
        await session.settle()


@case(
    "credit-grants",
    "an argument of many windows is granted on, so that its sender is not starved",
    "wire.md L28",
    remedy="grant with credit_dir request, the stream's id and the request's RID, as soon as half a window was used",
)
async def credit_grants(bench: Bench) -> None:
    await bench.echo(await bench.shared(LIMITS), bytes(_MANY * LIMITS.initial_credit * SMALL))


@case(
    "credit-flush",
    "what is pending is granted before the reader waits: a sender with a smaller window is not starved",
    "wire.md L28",
    remedy="grant whatever has been used as soon as there is nothing more to read, and not at half a window only",
)
async def credit_flush(bench: Bench) -> None:
    session = await bench.shared()
    exchange = bench.open(session)
    await session.write(exchange, 0, encode_value(bytes(SMALL)))
    window = exchange.windows["in"]
    await session.until(
        lambda: window.remaining == window.initial or exchange.fault is not None, "the grant of a single CHUNK"
    )
    session.close(exchange, 1)
    session.finish(exchange)
    await bench.succeeded(session, exchange)


@case(
    "credit-excess",
    "no more is granted than was sent",
    "wire.md L30",
    remedy="grant each CHUNK once",
)
async def credit_excess(bench: Bench) -> None:
    await bench.talk()


@case(
    "credit-form",
    "a grant names a stream of its request, and credit_dir request",
    "wire.md, Credit",
    remedy="CREDIT for an argument has its stream_id and meta {credit_dir: request}",
)
async def credit_form(bench: Bench) -> None:
    await bench.talk()


CASES = (credit_window, credit_again, credit_clamp, credit_grants, credit_flush, credit_excess, credit_form)
