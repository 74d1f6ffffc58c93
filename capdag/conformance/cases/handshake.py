"""From the start of the process to POLICY."""

from __future__ import annotations

from capdag.wire import (
    ALL_POOL,
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    Frame,
    FrameType,
    IdentityCheck,
    Limits,
    NetworkPolicy,
    deferred_identity_request,
    hello_frame,
)

from .._bench import Bench, check_err
from .._case import BreachError, CaseFailed, CaseSkipped, case

_LEAST_QUIET = 0.3

_SMALL_LIMITS = DEFAULT_LIMITS._replace(max_frame=1 << 20, max_chunk=4096, max_reorder_buffer=16, initial_credit=4)


@case(
    "hello",
    "HELLO is answered with HELLO: version 6, four limits above 0, manifest and pools as bytes of JSON",
    "wire.md, Handshake; L9",
    remedy="read HELLO from descriptor 0 and write one of your own on descriptor 1, before anything else",
)
async def hello(bench: Bench) -> None:
    async with bench.session(policy=False) as session:
        await session.check()


@case(
    "hello-first",
    "nothing is said before the host's HELLO",
    "wire.md L9",
    remedy="write nothing to descriptor 1 until HELLO has been read, banners of engines included",
)
async def hello_first(bench: Bench) -> None:
    started = (await bench.shared()).hello_seconds
    async with bench.start() as session:
        await session.until_quiet(max(_LEAST_QUIET, 1.5 * started))
        await session.greet()


@case(
    "hello-limits",
    "HELLO holds, limit by limit, the smaller of both sides'",
    "wire.md, Limits",
    remedy="answer with min(host's, own) for each of the four limits, and keep to it",
)
async def hello_limits(bench: Bench) -> None:
    async with bench.start(_SMALL_LIMITS) as session:
        await session.greet()
        assert session.hello is not None
        for name, offered, answered in zip(Limits._fields, _SMALL_LIMITS, session.hello.limits, strict=True):
            if answered > offered:
                raise CaseFailed(f"{name} was offered as {offered} and answered with {answered}")


@case(
    "hello-again",
    "a second HELLO is refused with ERR PROTOCOL_ERROR under its id, and nothing else changes",
    "wire.md L12",
    remedy="after the handshake answer HELLO with ERR PROTOCOL_ERROR",
)
async def hello_again(bench: Bench) -> None:
    async with bench.session() as session:
        frame = hello_frame(DEFAULT_LIMITS)
        frame.id = 4711
        check_err(await session.ask_back(frame, "ERR PROTOCOL_ERROR"), "PROTOCOL_ERROR")
        await session.lives_on()


@case(
    "hello-pools",
    "HELLO's pools name every cap by its canonical URN, and `all`",
    "wire.md, Pools",
    remedy="give a pool with declared, configured, active and queued for each cap of the manifest and for `all`",
)
async def hello_pools(bench: Bench) -> None:
    session = await bench.shared()
    assert session.hello is not None
    wanted = {IDENTITY_CAP, ALL_POOL, *(str(cap.urn) for cap in bench.roles.others)}
    missing = sorted(wanted - session.hello.pools.keys())
    if missing:
        raise CaseFailed(f"no pool is named {', '.join(missing)}")


@case(
    "identity",
    "cap:effect=none gives back the nonce of the host's check, before POLICY, and ends with success",
    "wire.md, Handshake; L10, L20",
    remedy="send each CHUNK's payload of cap:effect=none back as it came, in a stream of your own; END {exit_code: 0}",
)
async def identity(bench: Bench) -> None:
    async with bench.session(policy=False) as session:
        if session.identity_breach is not None:
            raise BreachError(session.identity_breach)
        if session.identity_error:
            raise CaseFailed(session.identity_error)


@case(
    "identity-text",
    "cap:effect=none gives back the later check of a switch: a text, with XID",
    "wire.md, Handshake",
    remedy="do not expect bytes in the identity cap: its payload comes back byte for byte, whatever it holds",
)
async def identity_text(bench: Bench) -> None:
    session = await bench.shared()
    frames = deferred_identity_request(b"a check of later", 1 << 40)
    error = await session.identify(frames, IdentityCheck(deferred=True))
    if error:
        raise CaseFailed(error)


@case(
    "early-request",
    "a REQ before POLICY is refused with PROTOCOL_VIOLATION",
    "wire.md L10",
    remedy="until POLICY has come, refuse every REQ but that for cap:effect=none",
)
async def early_request(bench: Bench) -> None:
    async with bench.session(policy=False) as session:
        if not bench.roles.others:
            raise CaseSkipped("the cartridge has no cap but identity")
        await bench.refused(session, session.begin(bench.roles.others[0].text), "PROTOCOL_VIOLATION")


@case(
    "early-call",
    "the cartridge makes no call before POLICY",
    "wire.md L11",
    remedy="wait for POLICY before the first REQ of your own",
)
async def early_call(bench: Bench) -> None:
    async with bench.session(policy=False) as session:
        await session.settle()
        await session.lives_on()


@case(
    "policy",
    "POLICY comes again, with each of its three words, and requests are served all the same",
    "wire.md, POLICY; L14",
    remedy="keep the latest POLICY; it is no reason to stop",
)
async def policy(bench: Bench) -> None:
    async with bench.session() as session:
        for word in NetworkPolicy:
            session.say_policy(word)
            try:
                await bench.echo(session, b"still here")
            except CaseFailed as error:
                raise CaseFailed(f"after POLICY {word}: {error}") from None


@case(
    "forbidden-frames",
    "after its HELLO the cartridge sends no HELLO, POLICY, RELAY_NOTIFY or RELAY_STATE",
    "wire.md L12",
    remedy="leave these frames to hosts and switches",
)
async def forbidden_frames(bench: Bench) -> None:
    await bench.talk()


@case(
    "stdout",
    "descriptor 1 holds frames, strictly encoded, and nothing else",
    "wire.md L1 to L4",
    remedy="print to stderr; move descriptor 1 away before an engine is loaded (dup it, then dup2 stderr over it)",
)
async def stdout(bench: Bench) -> None:
    await bench.talk()


@case(
    "relay-frames",
    "RELAY_NOTIFY on stdin ends the cartridge with status 1",
    "wire.md L12",
    remedy="a frame that belongs between host and switch says that the other side is confused: exit with 1",
)
async def relay_frames(bench: Bench) -> None:
    async with bench.session() as session:
        session.send(Frame(FrameType.RELAY_NOTIFY, 0, meta={"max_frame": 1 << 20, "max_chunk": 1 << 16}))
        status = await session.exit("after RELAY_NOTIFY")
        if status.code != 1:
            raise CaseFailed(f"the process {status.describe()}")


@case(
    "calls",
    "a call of the cartridge's own has no XID, names its request in meta.parent_rid, and has a body like any other's",
    "wire.md, Calls of a cartridge; L42",
    remedy="send REQ without key 13 and with meta.parent_rid, so that CANCEL finds its way, and then the body",
)
async def calls(bench: Bench) -> None:
    await bench.talk()
    if not bench.came[FrameType.REQ]:
        raise CaseSkipped("the cartridge made no call")


CASES = (
    hello, hello_first, hello_limits, hello_again, hello_pools, identity, identity_text, early_request, early_call,
    policy, forbidden_frames, stdout, relay_frames, calls,
)  # fmt: skip
