"""Requests that are wrong, and what the decoder must bear. After each the cartridge lives on."""

from __future__ import annotations

from capdag.errors import AttributionClass
from capdag.wire import (
    Failure,
    Frame,
    FrameType,
    body_end_frame,
    encode_value,
    err_frame,
    fnv1a_64,
    inspect,
    view_of,
)

from .._bench import Bench
from .._case import CaseFailed, CaseSkipped, case
from .._exchange import show
from .._session import INPUT, chunk_frame

_INPUT, _ENVIRONMENT = AttributionClass.INPUT, AttributionClass.ENVIRONMENT
_UNKNOWN_KEY = 99


@case(
    "no-handler",
    "a REQ for a cap that is not served is refused with NO_HANDLER, class environment",
    "errors.md; wire.md, The smallest cartridge",
    remedy="answer a REQ for an unknown cap with ERR NO_HANDLER / environment",
)
async def no_handler(bench: Bench) -> None:
    session = await bench.shared()
    unknown = session.begin("cap:in=media:void;nobody-serves-this;out=media:void")
    await bench.refused(session, unknown, "NO_HANDLER", _ENVIRONMENT)


@case(
    "no-cap",
    "a REQ without a cap is refused with INVALID_REQUEST, class input",
    "wire.md, Frames; errors.md",
    remedy="key 10 may be missing: answer with ERR INVALID_REQUEST / input",
)
async def no_cap(bench: Bench) -> None:
    session = await bench.shared()
    await bench.refused(session, session.begin(None), "INVALID_REQUEST", _INPUT)


@case(
    "req-payload",
    "a REQ that carries data itself is refused with PROTOCOL_ERROR",
    "wire.md, Requests; errors.md",
    remedy="key 6 of REQ is empty; refuse one that is not with ERR PROTOCOL_ERROR",
)
async def req_payload(bench: Bench) -> None:
    session = await bench.shared()
    exchange = session.begin(bench.roles.echo.text, payload=encode_value(b"data"))
    await bench.refused(session, exchange, "PROTOCOL_ERROR")


@case(
    "missing-argument",
    "a request without a required argument is refused with INVALID_REQUEST, class input",
    "wire.md, Requests; errors.md",
    remedy="when the body ends, see that each required argument has come as a stream",
)
async def missing_argument(bench: Bench) -> None:
    session = await bench.shared()
    cap = next((one for one in bench.roles.others if one.has_one_argument), None)
    if cap is None:
        raise CaseSkipped("no cap but identity takes an argument")
    exchange = session.begin(cap.text, cap.rules())
    session.finish(exchange)
    await bench.refused(session, exchange, "INVALID_REQUEST", _INPUT)


async def _broken(bench: Bench, *frames: Frame) -> None:
    """Send a body that breaks a rule of streams, and wait for the refusal."""
    session = await bench.shared()
    exchange = bench.open(session)
    for frame in frames:
        frame.id = exchange.rid
        exchange.windows[INPUT].take()
        session.flow(exchange, frame)
    await bench.refused(session, exchange, "PROTOCOL_VIOLATION")


def _chunk(index: int = 0, payload: bytes | None = None) -> Frame:
    return chunk_frame(0, index, encode_value(b"data") if payload is None else payload)


@case(
    "bad-checksum",
    "a CHUNK with a wrong checksum ends its request with PROTOCOL_VIOLATION",
    "wire.md L7, L22",
    remedy="compare key 16 with the FNV-1a 64 of the payload before using it",
)
async def bad_checksum(bench: Bench) -> None:
    chunk = _chunk()
    chunk.checksum = fnv1a_64(b"something else")
    await _broken(bench, chunk)


@case(
    "bad-index",
    "a CHUNK out of order ends its request with PROTOCOL_VIOLATION",
    "wire.md L22",
    remedy="expect chunk_index 0, 1, 2 … in each stream",
)
async def bad_index(bench: Bench) -> None:
    await _broken(bench, _chunk(0), _chunk(2))


@case(
    "bad-count",
    "a wrong chunk_count ends the request with PROTOCOL_VIOLATION",
    "wire.md L21, L22",
    remedy="compare key 15 of STREAM_END with the CHUNKs that came",
)
async def bad_count(bench: Bench) -> None:
    end = Frame(FrameType.STREAM_END, 0, stream_id=INPUT, chunk_count=3)
    await _broken(bench, _chunk(), end)


@case(
    "bad-order",
    "a CHUNK of a stream that was never opened ends its request with PROTOCOL_VIOLATION",
    "wire.md L22",
    remedy="look the stream_id up among the request's open streams",
)
async def bad_order(bench: Bench) -> None:
    await _broken(bench, _chunk(), chunk_frame(0, 0, encode_value(b"data"), "another"))


@case(
    "bad-end",
    "END of a body whose stream is open ends the request with PROTOCOL_VIOLATION",
    "wire.md L22",
    remedy="an argument is whole at its STREAM_END, not at END",
)
async def bad_end(bench: Bench) -> None:
    await _broken(bench, _chunk(), body_end_frame(0))


@case(
    "bad-payload",
    "a payload that is no CBOR ends the request with ERR",
    "wire.md L26",
    remedy="decode payloads strictly, and turn what cannot be decoded into ERR PROTOCOL_VIOLATION",
)
async def bad_payload(bench: Bench) -> None:
    session = await bench.shared()
    exchange = bench.hold(session)
    exchange.blame["payload"] = "bad-payload"
    await session.write(exchange, 0, b"\x58\xff no such length")
    session.close(exchange, 1)
    session.finish(exchange)
    terminal = await session.ended(exchange, "ERR")
    if terminal.type is not FrameType.ERR:
        raise CaseFailed(f"{show(terminal)} came where ERR was due")
    await session.lives_on()


@case(
    "body-taken-back",
    "ERR in place of the body's END ends the request with ERR",
    "wire.md, Requests",
    remedy="let the handler's input end with that error",
)
async def body_taken_back(bench: Bench) -> None:
    session = await bench.shared()
    exchange = bench.open(session)
    session.flow(exchange, err_frame(exchange.rid, Failure("CANCELLED", AttributionClass.USER, "never mind")))
    terminal = await session.ended(exchange, "ERR")
    if terminal.type is not FrameType.ERR:
        raise CaseFailed(f"{show(terminal)} came where ERR was due")
    await session.lives_on()


@case(
    "same-rid",
    "a second REQ under a live RID is refused with PROTOCOL_VIOLATION and its own XID; the first goes on",
    "wire.md L15",
    remedy="look for the RID among the live requests before taking a REQ",
)
async def same_rid(bench: Bench) -> None:
    session = await bench.shared()
    first = bench.open(session)
    second = bench.ask_as(session, first.rid, 1 << 33)
    await bench.refused(session, second, "PROTOCOL_VIOLATION")
    await bench.complete(session, first)


@case(
    "less-said",
    "a request may name a cap by less than its whole URN",
    "wire.md, The smallest cartridge; urn.md, Dispatch",
    remedy="the cap of a REQ is the requester's text: dispatch it, or look for the tag that only your cap has",
)
async def less_said(bench: Bench) -> None:
    session = await bench.shared()
    roles = bench.roles
    cap, data = (roles.echo, b"less") if roles.echo in roles.others else (roles.worker, roles.worker_input)
    shared = {key for one in roles.others if one is not cap for key in one.urn.tags}
    own = cap and next((key for key, value in cap.urn.tags.items() if value == "*" and key not in shared), None)
    if cap is None or own is None or f"cap:{own}" == cap.text:
        raise CaseSkipped("no cap that the kit can use has a tag of its own")
    if cap is roles.worker:
        await bench.need_worker()
    exchange = session.begin(f"cap:{own}")
    await session.give(exchange, cap.media, [encode_value(data)])
    await bench.succeeded(session, exchange)


@case(
    "later-keys",
    "keys of a later version, any order of keys and integers of any width are read",
    "wire.md, Encoding; L5, L6",
    remedy="look keys up by number; skip those you do not know; accept integers in 1, 2, 4 and 8 bytes",
)
async def later_keys(bench: Bench) -> None:
    session = await bench.shared()
    exchange = bench.ask(session)
    session.open(exchange, bench.roles.echo.media)
    chunk = chunk_frame(exchange.rid, 0, encode_value(b"later"))
    chunk.routing_id, chunk.seq = exchange.xid, 2
    exchange.windows[INPUT].take()
    session.send_view(inspect(_odd(view_of(chunk).fields)))
    session.close(exchange, 1)
    session.finish(exchange)
    await bench.succeeded(session, exchange)
    if exchange.data != b"later":
        raise CaseFailed(f"{exchange.data[:40]!r} came back")


def _odd(fields: dict[int, object]) -> bytes:
    """Encode a map backwards, its keys and version in more bytes than they need, with a key that nobody knows."""
    fields = {**fields, _UNKNOWN_KEY: "of a later version", 4: None}
    pairs = [b"\x19" + key.to_bytes(2, "big") + _wide(key, value) for key, value in reversed(fields.items())]
    return b"\xb8" + bytes([len(pairs)]) + b"".join(pairs)


def _wide(key: int, value: object) -> bytes:
    return b"\x1b" + value.to_bytes(8, "big") if key in (0, 1) and isinstance(value, int) else encode_value(value)


CASES = (
    no_handler, no_cap, req_payload, missing_argument, bad_checksum, bad_index, bad_count, bad_order, bad_end,
    bad_payload, body_taken_back, same_rid, less_said, later_keys,
)  # fmt: skip
