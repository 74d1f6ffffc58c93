"""How the process ends, and what it must bear."""

from __future__ import annotations

from capdag.wire import Frame, FrameType, encode_value

from .._bench import Bench
from .._case import CaseFailed, case


@case(
    "eof",
    "the end of stdin ends the cartridge within 2 s, with status 0",
    "wire.md, Framing",
    remedy="when a read of descriptor 0 gives nothing, stop and exit with 0",
)
async def eof(bench: Bench) -> None:
    async with bench.session() as session:
        session.target.close_stdin()
        status = await session.exit("after the end of stdin")
        if status.code != 0:
            raise CaseFailed(f"{session.story()}, where status 0 was due")


@case(
    "eof-busy",
    "the end of stdin ends it as well while requests are live",
    "wire.md, Framing",
    remedy="cancel what runs (ERR ABORTED / environment, if there is time) and exit with 0 all the same",
)
async def eof_busy(bench: Bench) -> None:
    async with bench.session() as session:
        for _ in range(2):
            await session.write(bench.open(session), 0, encode_value(b"begun"))
        session.target.close_stdin()
        status = await session.exit("after the end of stdin, with two requests live")
        if status.code != 0:
            raise CaseFailed(f"{session.story()}, where status 0 was due")


@case(
    "left-behind",
    "a process that has ended leaves no process behind",
    "wire.md, Framing; host.md H33",
    remedy="end what the cartridge has started before it exits",
)
async def left_behind(bench: Bench) -> None:
    async with bench.session() as session:
        await bench.echo(session, b"work")
        session.target.close_stdin()
        await session.exit("after the end of stdin")
        left = session.target.left_behind()
        if left:
            raise CaseFailed(f"processes {', '.join(map(str, left))} are still there")


@case(
    "sigterm",
    "SIGTERM ends the cartridge in time",
    "host.md, Life of a cartridge",
    remedy="leave SIGTERM to the system, or exit in its handler",
)
async def sigterm(bench: Bench) -> None:
    async with bench.session() as session:
        session.target.terminate()
        await session.exit("after SIGTERM")


async def _bears(bench: Bench, data: bytes) -> None:
    """Send what no host would: the cartridge exits of itself, or reads on."""
    async with bench.session() as session:
        session.target.send_raw(data)
        probe = Frame(FrameType.HEARTBEAT, b"still listening?")
        session.watch.replies[probe.id] = None
        session.send(probe)
        await session.until(
            lambda: session.ended_itself or session.watch.replies[probe.id] is not None,
            "an exit, or the reply to a heartbeat",
            bench.settings.exit_timeout,
        )
        if session.ended_itself:
            status = await session.exit("after its stdout had ended")
            if status.signal is not None:
                raise CaseFailed(session.story())


@case(
    "bad-length",
    "a length over every limit ends the cartridge; it is not waited for",
    "wire.md L1, L2",
    remedy="look at the length before reading the body, and exit if it is 0 or over max_frame",
)
async def bad_length(bench: Bench) -> None:
    await _bears(bench, b"\xff\xff\xff\xff")


@case(
    "bad-body",
    "a body that is no CBOR map ends the cartridge, or is passed over; it crashes nothing",
    "wire.md L1, L4",
    remedy="decode with bounds on every length, and exit if a body cannot be read",
)
async def bad_body(bench: Bench) -> None:
    body = b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff no such map"
    await _bears(bench, len(body).to_bytes(4, "big") + body)


@case(
    "bad-depth",
    "a body that is nested 60,000 deep crashes nothing",
    "wire.md L4",
    remedy="refuse nesting deeper than 16 while decoding",
)
async def bad_depth(bench: Bench) -> None:
    body = b"\xa1\x05" + b"\x81" * 60_000 + b"\x00"
    await _bears(bench, len(body).to_bytes(4, "big") + body)


@case(
    "eof-torn",
    "stdin that ends inside a frame ends the cartridge in time",
    "wire.md L1",
    remedy="a read of nothing is the end, wherever it comes",
)
async def eof_torn(bench: Bench) -> None:
    async with bench.session() as session:
        session.target.send_raw(b"\x00\x00\x01\x00\xa5")
        session.target.close_stdin()
        await session.exit("after stdin had ended inside a frame")


CASES = (eof, eof_busy, eof_torn, left_behind, sigterm, bad_length, bad_body, bad_depth)
