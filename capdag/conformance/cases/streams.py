"""Requests and what their streams hold."""

from __future__ import annotations

from capdag.wire import DEFAULT_LIMITS, FrameType, encode_value

from .._bench import SMALL, Bench
from .._case import CaseFailed, CaseSkipped, case
from .credit import LIMITS

_LEAST_FRAME = 16_384
_AT_ONCE = 8
_MANY = 7
_SMALL_CHUNK = 100


@case(
    "answer",
    "a request is answered: streams, and one END with exit_code 0",
    "wire.md, Requests; L16, L20",
    remedy="answer every REQ that is served with STREAM_START, CHUNKs, STREAM_END and END {exit_code: 0}",
)
async def answer(bench: Bench) -> None:
    session = await bench.shared()
    await bench.echo(session, b"abc")


@case(
    "empty",
    "a stream without CHUNKs is an empty value, not a missing one",
    "wire.md, Requests",
    remedy="take STREAM_START and STREAM_END with nothing between for an empty argument",
)
async def empty(bench: Bench) -> None:
    await bench.echo(await bench.shared(), b"")


@case(
    "worker",
    "the cap that is named, or one whose answer is a list, does its work",
    "wire.md, Requests, Values",
    remedy="see what the answer ends with; give the cap what it needs with --cap and --input",
)
async def worker(bench: Bench) -> None:
    session = await bench.shared()
    await bench.worked(session, await bench.work(session))


@case(
    "beyond-window",
    "much more than a window goes in and comes out, at the same time",
    "wire.md, Credit; L27, L32",
    remedy="go on reading while the answer waits for credit, and grant what has been used",
)
async def beyond_window(bench: Bench) -> None:
    await bench.echo(await bench.shared(LIMITS), bytes(range(256)) * (_MANY * LIMITS.initial_credit * SMALL // 256))


@case(
    "window-of-one",
    "the smallest window will do",
    "wire.md L27, L28",
    remedy="grant at max(1, initial_credit // 2): 1 where the window is 1",
)
async def window_of_one(bench: Bench) -> None:
    async with bench.session(LIMITS._replace(initial_credit=1)) as session:
        await bench.echo(session, bytes(5 * SMALL), blame={"credit-grants": "window-of-one"})


@case(
    "chunk-size",
    "no payload is longer than the agreed max_chunk (and 5 bytes where it is a whole value)",
    "wire.md L24",
    remedy="cut values at max_chunk of HELLO, not at a constant",
)
async def chunk_size(bench: Bench) -> None:
    async with bench.session(DEFAULT_LIMITS._replace(max_chunk=_SMALL_CHUNK)) as session:
        await bench.echo(session, bytes(range(200)) * 10, _SMALL_CHUNK)


@case(
    "frame-size",
    "no frame is longer than the agreed max_frame",
    "wire.md L2, L8",
    remedy="cut values so that a whole CHUNK, with its other keys, stays 10 bytes under max_frame of HELLO",
)
async def frame_size(bench: Bench) -> None:
    # Room for what a heartbeat's reply holds: as much as HELLO.
    hello = (await bench.shared()).watch.hello
    size = max(_LEAST_FRAME, 0 if hello is None else 2 * len(hello.body))
    async with bench.session(DEFAULT_LIMITS._replace(max_frame=size)) as session:
        await bench.echo(session, bytes(range(256)) * (4 * size // 256), size // 2)


@case(
    "items",
    "a list comes as items, and whole ones, even where a CHUNK has no room for one",
    "wire.md, Values; L24, L25",
    remedy="encode each item once and cut the encoding at max_chunk; end a stream after an item only",
)
async def items(bench: Bench) -> None:
    if not await _list(bench, 3):
        raise CaseFailed("the request succeeded, and not one item came")


@case(
    "item-start",
    "every item begins on a fresh CHUNK",
    "wire.md L25",
    remedy="never put the end of one item and the beginning of another into one CHUNK",
)
async def item_start(bench: Bench) -> None:
    await _list(bench, 2)


@case(
    "item-meta",
    "meta of an item is on its first CHUNK alone",
    "wire.md, Values",
    remedy="leave meta out of CHUNKs that continue an item: nobody reads it there",
)
async def item_meta(bench: Bench) -> None:
    await _list(bench, 3)


async def _list(bench: Bench, pieces: int) -> int:
    """Have the worker's list sent with a max_chunk that cuts its longest item in pieces; return how many items came."""
    await bench.need_worker()
    worker = bench.roles.worker
    if worker is None or not worker.gives_a_list:
        raise CaseSkipped("no cap gives a list (an output with is_sequence true)")
    limits = DEFAULT_LIMITS._replace(max_chunk=max(1, bench.item_size // pieces))
    if worker.is_fed:  # its selector has to fit the first window
        limits = limits._replace(initial_credit=max(limits.initial_credit, len(bench.roles.worker_input)))
    session = await bench.shared(limits)
    exchange = await bench.work(session)
    await bench.worked(session, exchange)
    return len(exchange.main)


@case(
    "outputs",
    "an answer's streams are those that the manifest declares: media, and whether a list",
    "wire.md, Requests, Manifest",
    remedy="give STREAM_START the media_urn (or a narrower one) and is_sequence of the cap's output; key 21 for others",
)
async def outputs(bench: Bench) -> None:
    await bench.talk()


@case(
    "stream-order",
    "STREAM_START, CHUNKs, STREAM_END, in this order, under an id that is new; END after all have ended",
    "wire.md L20, L22",
    remedy="open each stream once, send nothing after its STREAM_END, and close all before END",
)
async def stream_order(bench: Bench) -> None:
    await bench.talk()


@case(
    "chunk-index",
    "CHUNKs are numbered 0, 1, 2 … in each stream",
    "wire.md L21",
    remedy="count chunk_index in each stream by itself, from 0 and without gaps",
)
async def chunk_index(bench: Bench) -> None:
    await bench.talk()


@case(
    "chunk-count",
    "STREAM_END's chunk_count is the number of CHUNKs",
    "wire.md L21",
    remedy="count what was sent, not what was meant to be",
)
async def chunk_count(bench: Bench) -> None:
    await bench.talk()


@case(
    "checksum",
    "a CHUNK's checksum is the FNV-1a 64 of its payload",
    "wire.md, Checksums; L7",
    remedy="hash the bytes of key 6 as they stand: xor first, then multiply, modulo 2^64",
)
async def checksum(bench: Bench) -> None:
    await bench.talk()


@case(
    "payload",
    "what CHUNKs hold is strict CBOR, one whole value each where the stream is no list",
    "wire.md, Values; L26",
    remedy="encode each piece by itself: bytes 61 62 go as 42 61 62",
)
async def payload(bench: Bench) -> None:
    await bench.talk()


@case(
    "seq",
    "the frames of an answer are numbered 0, 1, 2 … in the order in which they leave",
    "wire.md L33",
    remedy="one counter a request, from 0, for REQ, CHUNK, END, LOG, ERR, STREAM_START and STREAM_END",
)
async def seq(bench: Bench) -> None:
    await bench.talk()


@case(
    "ids",
    "an answer goes under the RID and the XID of its REQ, be they 16 bytes or numbers",
    "wire.md, Frames; L18",
    remedy="copy keys 2 and 13 of the REQ to every frame of its answer, as they came",
)
async def ids(bench: Bench) -> None:
    session = await bench.talk()
    number = 5
    twins = [
        bench.ask_as(session, number, number.to_bytes(16, "big")),
        bench.ask_as(session, number.to_bytes(16, "big"), number),
    ]
    for position, exchange in enumerate(twins):
        await session.give(exchange, bench.roles.echo.media, [b"\x41" + bytes([position])])
    for position, exchange in enumerate(twins):
        await bench.succeeded(session, exchange)
        if exchange.data != bytes([position]):
            raise CaseFailed("the uint 5 and the 16 bytes that spell it were taken for one id")


@case(
    "one-terminal",
    "a request ends with one END or ERR, and what comes for it later is not answered",
    "wire.md L16, L36",
    remedy="forget a request with its terminal; a late CANCEL or END finds nothing",
)
async def one_terminal(bench: Bench) -> None:
    session = await bench.talk()
    exchange = await bench.echo(session, b"once")
    session.send_late(exchange)
    await session.settle()
    await session.lives_on()


@case(
    "after-terminal",
    "after END or ERR nothing more of the answer comes",
    "wire.md L36",
    remedy="send the terminal last, after every LOG and CHUNK",
)
async def after_terminal(bench: Bench) -> None:
    await bench.talk()


@case(
    "end-meta",
    "END of an answer says how it went: exit_code, an integer",
    "wire.md, Terminal metadata",
    remedy="put {exit_code: 0, progress: 1.0} into END's meta",
)
async def end_meta(bench: Bench) -> None:
    await bench.talk()


@case(
    "err-meta",
    "ERR has a code, a message and an attribution_class of the five",
    "wire.md, Terminal metadata; L37",
    remedy="give all three: class is one of input, resource, environment, internal, user",
)
async def err_meta(bench: Bench) -> None:
    await bench.talk()


@case(
    "log-meta",
    "LOG has a level and a message; all but progress have an attribution_class",
    "wire.md, Terminal metadata; L37",
    remedy="give level and message, and a class with every level but progress: a LOG without is dropped",
)
async def log_meta(bench: Bench) -> None:
    await bench.talk()
    if not bench.came[FrameType.LOG]:
        raise CaseSkipped("no LOG came")


@case(
    "concurrent",
    "requests that run at the same time do not mix",
    "wire.md L15, L18",
    remedy="keep everything of a request by its RID; interleaved frames are the rule",
)
async def concurrent(bench: Bench) -> None:
    session = await bench.shared()
    exchanges = [bench.open(session) for _ in range(_AT_ONCE)]
    for index in range(3):
        for number, exchange in enumerate(exchanges):
            await session.write(exchange, index, encode_value(bytes([number]) * 100))
    for exchange in exchanges:
        session.close(exchange, 3)
        session.finish(exchange)
    for number, exchange in enumerate(exchanges):
        await bench.succeeded(session, exchange)
        if exchange.data != bytes([number]) * 300:
            raise CaseFailed("one request's bytes came back to another, or not at all")


CASES = (
    answer, empty, worker, beyond_window, window_of_one, chunk_size, frame_size, items, item_start, item_meta, outputs,
    stream_order, chunk_index, chunk_count, checksum, payload, seq, ids, one_terminal, after_terminal, end_meta,
    err_meta, log_meta, concurrent,
)  # fmt: skip
