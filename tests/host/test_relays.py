"""A host outlives its relay: another link takes the place of the one that ended, and the processes serve on."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest
import trio

from capdag.errors import LocalProtocolError
from capdag.host import HostRuntime
from capdag.transport import local_link_pair
from capdag.wire import FrameType
from tests.host.driver import LINKS, QUICK, Bench, Relay, bench, links, record
from tests.misbehave import CALL, CAP, GOOD


async def another(it: Bench, link: str, nursery: trio.Nursery) -> Relay:
    """Attach another relay to the host."""
    ours, theirs, (near, far) = links(link)
    relay = Relay(ours)
    relay.rids = count(1_000_000)  # ids of requests are never used twice
    near(relay, nursery)
    far(it.host.attach_relay(theirs), nursery)
    relay.policy()
    await relay.until(lambda: relay.notices)
    return relay


@LINKS
async def test_another_relay_is_served_by_the_same_process(link: str) -> None:
    """H52."""
    async with bench(record(), link=link) as it, trio.open_nursery() as nursery:
        assert await it.relay.call(GOOD).body(b"x").succeeded() == b"x"
        pid = it.cartridge()["pid"]
        it.relay.link.close()
        await it.relay.until(lambda: it.host._x.closing)  # refused while nobody is there
        relay = await another(it, link, nursery)
        assert relay.first is not None
        assert relay.first.type is FrameType.RELAY_NOTIFY
        assert CAP in relay.caps()
        assert await relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert await relay.call(CALL).body(b"z").succeeded() == b"z"
        assert it.cartridge()["pid"] == pid
        await it.host.shutdown()
        nursery.cancel_scope.cancel()


@LINKS
async def test_nothing_of_the_former_relay_reaches_the_new_one(link: str) -> None:
    """H52: its requests are cancelled, also where its link still lived, and their ends go nowhere."""
    records = [record("WritesOn"), record("IgnoresCancel", name="deaf", caps=["cap:deaf"])]
    async with bench(*records, link=link) as it, trio.open_nursery() as nursery:
        written = it.relay.call(CAP)
        written.grants = False
        written.body(b"x")
        await it.relay.until(lambda: len(written.of(FrameType.CHUNK)) == 32)
        deaf = it.relay.call("cap:deaf")
        await it.relay.until(lambda: it.cartridge("deaf")["active"] == 1)
        relay = await another(it, link, nursery)
        await it.relay.until(lambda: it.relay.closed_reason)
        assert await relay.call(GOOD).body(b"y").succeeded() == b"y"
        deaf.cancel()  # on the link that has ended
        await relay.until(lambda: not it.protocol["incoming_rxids"])
        assert relay.loose == []
        await it.host.shutdown()
        nursery.cancel_scope.cancel()


async def test_a_request_that_is_cancelled_already_when_the_relay_goes_is_cancelled_once() -> None:
    """H52, H26: the host waits for one terminal, and kills for it in time."""
    async with bench(record("IgnoresCancel")) as it, trio.open_nursery() as nursery:
        deaf = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.cartridge()["active"] == 1)
        deaf.cancel()
        (cartridge,) = it.host._roster
        await it.relay.until(lambda: cartridge.cancelling)
        relay = await another(it, "local", nursery)
        assert cartridge.cancelling == 1
        await relay.until(lambda: not it.protocol["incoming_rxids"])
        assert cartridge.cancelling == 0
        await it.host.shutdown()
        nursery.cancel_scope.cancel()


async def test_processes_are_kept_warm_for_a_set_time_only() -> None:
    """H54."""
    settings = msgspec.structs.replace(QUICK, keep_warm=0.3)
    async with bench(record(), settings=settings) as it, trio.open_nursery() as nursery:
        assert await it.relay.call(GOOD).body(b"x").succeeded() == b"x"
        pid = it.cartridge()["pid"]
        it.relay.link.close()
        relay = await another(it, "local", nursery)
        await trio.sleep(0.4)
        assert it.cartridge()["pid"] == pid  # with a relay nothing is stopped for being idle
        relay.link.close()
        await relay.until(lambda: it.state() == "idle")
        relay = await another(it, "local", nursery)
        assert await relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert it.cartridge()["pid"] != pid
        await it.host.shutdown()
        nursery.cancel_scope.cancel()


async def test_a_host_may_begin_without_a_relay() -> None:
    """H54: what tells its caps only when it runs is started, and offered to the relay that comes."""
    host = HostRuntime([record(known=[])], None, None, QUICK)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        host.start("cart")
        ours, theirs, (near, far) = links("local")
        relay = Relay(ours)
        it = Bench(host, relay)
        await relay.until(lambda: it.state() == "running")
        near(relay, nursery)
        far(host.attach_relay(theirs), nursery)
        relay.policy()
        await relay.until(lambda: relay.notices)
        assert CAP in relay.caps()
        assert await relay.call(GOOD).body(b"x").succeeded() == b"x"
        await host.shutdown()
        it.check_empty()
        nursery.cancel_scope.cancel()


async def test_relay_of_a_host_that_does_not_run_is_refused() -> None:
    """H52."""
    ours, theirs = local_link_pair("relay")
    with pytest.raises(LocalProtocolError, match="only to a host that runs"):
        HostRuntime([], ours, None).attach_relay(theirs)
    async with bench(record()) as it:
        await it.host.shutdown()
        with pytest.raises(LocalProtocolError, match="not shutting down"):
            it.host.attach_relay(theirs)
