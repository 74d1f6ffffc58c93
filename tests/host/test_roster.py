"""What leaves the roster takes no new request, finishes what it holds, and comes back if it is wanted again."""

from __future__ import annotations

import msgspec
import pytest

from capdag.errors import AttributionClass, ConfigError
from capdag.host import HostSettings
from capdag.wire import failure_of
from tests.host.driver import LINKS, QUICK, bench, record
from tests.leaks import alive
from tests.misbehave import CAP, GOOD


@LINKS
async def test_retired_cartridge_leaves_at_once_drains_and_is_stopped(link: str) -> None:
    """H46, H47."""
    async with bench(record("IgnoresCancel"), record(name="other", caps=["cap:other"]), link=link) as it:
        held = it.relay.call(GOOD)
        held.start()
        await it.relay.until(lambda: it.state() == "running")
        pid = it.cartridge()["pid"]
        it.host.sync_roster([record(name="other", caps=["cap:other"])])
        assert it.state() == "retiring"
        await it.relay.call(GOOD).failed("NO_HANDLER")
        await it.relay.until(lambda: "cart" not in it.relay.advertised())
        held.chunk(b"x")
        held.finish(1)
        assert await held.succeeded() == b"x"
        await it.relay.until(lambda: not alive(pid))
        await it.relay.until(lambda: [one["id"] for one in it.host.snapshot()["cartridges"]] == ["other"])
        assert await it.relay.call("cap:other").body(b"y").succeeded() == b"y"


@LINKS
async def test_retired_cartridge_that_does_not_drain_is_killed(link: str) -> None:
    """H47: CARTRIDGE_RETIRED, which is no user's cancel."""
    settings = msgspec.structs.replace(QUICK, retire_timeout=0.2)
    async with bench(record("IgnoresCancel"), link=link, settings=settings) as it:
        held = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.cartridge()["active"] == 1)
        it.host.sync_roster([])
        assert "did not end in 0.2 s (retire_timeout)" in await held.failed("CARTRIDGE_RETIRED")
        assert failure_of(held.terminals[0].meta).attribution is AttributionClass.ENVIRONMENT
        assert it.host.snapshot()["cartridges"] == []


async def test_idle_or_never_started_is_gone_at_once() -> None:
    """H46."""
    async with bench(record(), record(name="other", caps=["cap:other"])) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        pid = it.cartridge()["pid"]
        it.host.sync_roster([])
        assert [one["id"] for one in it.host.snapshot()["cartridges"]] == ["cart"]
        await it.relay.until(lambda: not it.host.snapshot()["cartridges"])
        assert not alive(pid)


@LINKS
async def test_return_of_the_same_record_cancels_the_retirement(link: str) -> None:
    """H48: the living process serves on."""
    async with bench(record(), link=link) as it:
        held = it.relay.call(CAP)
        held.start()
        await it.relay.until(lambda: it.state() == "running")
        pid = it.cartridge()["pid"]
        it.host.sync_roster([])
        await it.relay.until(lambda: "cart" not in it.relay.advertised())
        it.host.sync_roster([record()])
        assert it.state() == "running"
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        held.finish(0)
        await held.succeeded()
        assert it.cartridge()["pid"] == pid
        assert CAP in it.relay.caps()


async def test_changed_record_replaces_the_old_one_which_drains_beside_it() -> None:
    """H46, H47."""
    changed = msgspec.structs.replace(record(), env={**record().env, "CHANGED": "1"})
    async with bench(record()) as it:
        held = it.relay.call(CAP)
        held.start()
        await it.relay.until(lambda: it.state() == "running")
        pid = it.cartridge()["pid"]
        it.host.sync_roster([changed])
        assert await it.relay.call(CAP).body(b"new").succeeded() == b"new"
        assert it.cartridge()["pid"] != pid
        assert [one["state"] for one in it.host.snapshot()["cartridges"]] == ["running", "retiring"]
        held.finish(0)
        await held.succeeded()
        await it.relay.until(lambda: not alive(pid))
        assert await it.relay.call(CAP).body(b"still").succeeded() == b"still"


async def test_start_of_a_retired_cartridge_serves_what_waits_for_it() -> None:
    """H47."""
    async with bench(record()) as it:
        call = it.relay.call(CAP).body(b"x")
        assert it.state() == "starting"
        it.host.sync_roster([])
        assert await call.succeeded() == b"x"
        await it.relay.until(lambda: not it.host.snapshot()["cartridges"])
        assert CAP not in it.relay.caps()


async def test_request_that_waits_for_the_next_process_of_a_retired_one_is_told() -> None:
    """H47."""
    settings = msgspec.structs.replace(QUICK, idle_timeout=0.05)
    async with bench(record("IgnoresSigterm"), settings=settings) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        await it.relay.until(lambda: it.state() == "stopping")
        call = it.relay.call(CAP).body(b"y")
        await it.relay.until(lambda: it.cartridge()["waiting"] == 1)
        it.host.sync_roster([])
        await call.failed("CARTRIDGE_RETIRED")


async def test_sync_is_checked_keeps_what_is_the_same_and_resets_the_broken() -> None:
    """H46."""
    async with bench(record("WrongVersion"), record(name="other", caps=["cap:other"])) as it:
        with pytest.raises(ConfigError, match="two cartridges have the id 'a'"):
            it.host.sync_roster([record(name="a"), record(name="a")])
        assert [one["id"] for one in it.host.snapshot()["cartridges"]] == ["cart", "other"]
        await it.relay.call("cap:other").body(b"x").succeeded()
        await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert it.state() == "broken"
        pid = it.cartridge("other")["pid"]
        it.host.sync_roster([record(name="other", caps=["cap:other"]), record("WrongVersion")])
        assert it.state() == "registered"
        assert it.cartridge("other")["pid"] == pid
    assert HostSettings().retire_timeout == 600
