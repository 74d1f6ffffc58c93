"""A cartridge that runs already is attached over its link: handshake and identity at once, gone with its link."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from capdag.errors import ConfigError, LocalProtocolError
from capdag.host import AttachError
from capdag.transport import FdLink, LocalLink, child_environment, local_link_pair, new_run_id, spawn
from capdag.wire import Frame, FrameView, NetworkPolicy, view_of
from tests.host.driver import QUICK, bench, record
from tests.misbehave import CAP, GOOD, MISDEEDS, Cartridge, command, environment


class InProcess:
    """A cartridge of `tests.misbehave` that lives at the far end of a link inside this process."""

    def __init__(self, misdeed: str, link: LocalLink) -> None:
        kind = MISDEEDS[misdeed]

        class Linked(kind):  # type: ignore[misc, valid-type]
            def send_as_is(self, frame: Frame) -> None:
                link.send([view_of(frame)])

        os.environ["CAPDAG_CONFIG"] = json.dumps({"caps": [CAP, GOOD]})
        self.cartridge: Cartridge = Linked(misdeed, [])
        del os.environ["CAPDAG_CONFIG"]
        self.closed_reason: str | None = None
        link.connect(self)

    def deliver(self, batch: Sequence[FrameView]) -> None:
        for view in batch:
            self.cartridge.take(view)

    def closed(self, reason: str) -> None:
        self.closed_reason = reason


@asynccontextmanager
async def running(misdeed: str) -> AsyncIterator[FdLink]:
    """Start a cartridge's process that the host knows nothing of, and give a link over its descriptors."""
    own = {**environment(), "CAPDAG_CONFIG": json.dumps({"caps": [CAP, GOOD]})}
    child = spawn(command(misdeed), env=child_environment(own, new_run_id()))
    try:
        yield FdLink("apart", child.stdout_fd, child.stdin_fd, close_read=lambda: None, close_write=child.close_stdin)
    finally:
        await child.stop(1)
        child.close()


async def test_descriptors_are_attached_and_serve_like_any_other() -> None:
    """H44."""
    async with bench(record(caps=["cap:other"])) as it, running("TellsEnvironment") as link:
        await it.host.attach_cartridge("apart", link)
        assert it.state("apart") == "running"
        assert CAP in it.relay.caps()
        told = json.loads(await it.relay.call(CAP).body(b"x").succeeded())
        assert told["policy"] == ["no_telemetry"]
        it.relay.policy(NetworkPolicy.OFFLINE)
        told = json.loads(await it.relay.call(CAP).body(b"x").succeeded())
        assert told["policy"] == ["no_telemetry", "offline"]
        with pytest.raises(ConfigError, match="there is a cartridge 'cart' already"):
            await it.host.attach_cartridge("cart", link)


async def test_any_link_is_attached_and_gone_with_its_end() -> None:
    """H44, H45: what it held ends, its caps leave, and its id is free for another."""
    async with bench() as it:
        for _ in range(2):
            near, far = local_link_pair("apart")
            InProcess("IgnoresCancel", far)
            await it.host.attach_cartridge("apart", near)
            assert await it.relay.call(GOOD).body(b"x").succeeded() == b"x"
            held = it.relay.call(CAP).body(b"x")
            far.close()
            assert "the other side closed the link" in await held.failed("CARTRIDGE_DIED")
            await it.relay.call(GOOD).failed("NO_HANDLER")
            await it.relay.until(lambda: "apart" not in it.relay.advertised())
            assert it.host.snapshot()["cartridges"] == []


async def test_attached_process_that_dies_is_gone() -> None:
    """H45."""
    async with bench() as it, running("Dies") as link:
        await it.host.attach_cartridge("apart", link)
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
        await it.relay.call(GOOD).failed("NO_HANDLER")


@pytest.mark.parametrize(
    ("misdeed", "told"),
    [
        ("WrongVersion", "protocol version 5"),
        ("WrongIdentity", "not the nonce"),
        ("Silent", "no HELLO came in 0.2 s"),
        ("PrintsAtStart", "Loading model..."),
        ("ExitBeforeHello", "the other side closed the link"),
    ],
)
async def test_failed_handshake_is_an_error_and_leaves_nothing(misdeed: str, told: str) -> None:
    """H44."""
    settings = msgspec.structs.replace(QUICK, handshake_timeout=0.2 if misdeed == "Silent" else 8)
    async with bench(settings=settings) as it, running(misdeed) as link:
        with pytest.raises(AttachError, match="cartridge 'apart'") as raised:
            await it.host.attach_cartridge("apart", link)
        assert told in str(raised.value)
        assert it.host.snapshot()["cartridges"] == []
        assert it.relay.advertised().keys() == {"identity"}


async def test_cancelled_attach_closes_the_link() -> None:
    """H44."""
    async with bench() as it:
        near, far = local_link_pair("apart")
        silent = InProcess("Silent", far)
        with trio.move_on_after(0.05):
            await it.host.attach_cartridge("apart", near)
        await it.relay.until(lambda: silent.closed_reason)
        assert it.host.snapshot()["cartridges"] == []


async def test_attached_cartridge_is_let_go_at_the_shutdown_and_kept_by_the_roster() -> None:
    """H44, H46."""
    async with bench(record()) as it:
        near, far = local_link_pair("apart")
        apart = InProcess("Nothing", far)
        await it.host.attach_cartridge("apart", near)
        it.host.sync_roster([])
        assert [cartridge["id"] for cartridge in it.host.snapshot()["cartridges"]] == ["apart"]
        assert await it.relay.call(GOOD).body(b"x").succeeded() == b"x"
        with pytest.raises(ConfigError, match="two cartridges have the id 'apart'"):
            it.host.sync_roster([record(name="apart")])
        await it.host.shutdown()
        assert apart.closed_reason is not None
        with pytest.raises(LocalProtocolError, match="a cartridge can be attached only to a host that runs"):
            await it.host.attach_cartridge("late", near)
