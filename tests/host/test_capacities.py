"""Desired capacities travel with a heartbeat to a cartridge of the SDK, and what it made of them comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capdag.errors import ConfigError
from capdag.host import CartridgeRecord
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import STUB_COMMAND
from tests.host.driver import LINKS, QUICK, Bench, bench
from tests.misbehave import cap_object, environment

SETTINGS = msgspec.structs.replace(QUICK, heartbeat_interval=0.4, heartbeat_timeout=0.35)
STUB = CartridgeRecord("stub", STUB_COMMAND, [cap_object(stub.HOLD)], env=environment())


def pool(it: Bench, name: str) -> dict[str, Any]:
    """Return a pool as the last RELAY_NOTIFY has it."""
    found: dict[str, Any] = it.relay.advertised()["stub"]["runtime_stats"]["pools"].get(name, {})
    return found


@LINKS
async def test_capacities_reach_the_cartridge_and_its_pools_the_relay(link: str) -> None:
    """H49: also each process after it."""
    async with bench(STUB, link=link, settings=SETTINGS) as it:
        held = it.relay.call(stub.HOLD).body()
        await it.relay.until(lambda: pool(it, "engine").get("declared") == 2)
        assert pool(it, "engine")["configured"] == 2
        it.host.set_capacities("stub", {"engine": 1, "all": 0})
        await it.relay.until(lambda: pool(it, "engine")["configured"] == 1)
        assert (pool(it, "engine")["declared"], pool(it, "engine")["active"]) == (2, 1)
        assert it.cartridge("stub")["pools"]["engine"] == pool(it, "engine")
        assert it.cartridge("stub")["desired_capacities"] == {"engine": 1, "all": 0}
        held.cancel(force_kill=True)
        await held.failed("CANCELLED")
        again = it.relay.call(stub.HOLD).body()
        await it.relay.until(lambda: pool(it, "engine")["configured"] == 2)
        await it.relay.until(lambda: pool(it, "engine")["configured"] == 1)
        again.cancel()
        await again.failed("CANCELLED")


async def test_sizes_of_the_record_are_asked_for_from_the_first_process_on() -> None:
    """H58."""
    async with bench(msgspec.structs.replace(STUB, pools={"engine": 1}), settings=SETTINGS) as it:
        held = it.relay.call(stub.HOLD).body()
        await it.relay.until(lambda: pool(it, "engine").get("configured") == 1)
        assert pool(it, "engine")["declared"] == 2
        held.cancel()
        await held.failed("CANCELLED")


async def test_sizes_of_pools_that_there_are_not_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """H58: as soon as the cartridge has said which it has."""
    async with bench(msgspec.structs.replace(STUB, pools={"al": 2}, warm=True), settings=SETTINGS) as it:
        await it.relay.until(lambda: it.state("stub") == "running")
        trouble = it.cartridge("stub")["trouble"]
    assert trouble == (
        "cartridge 'stub' has no pool 'al', which is to have a size: its pools are engine, all, and one for each cap"
    )
    assert trouble in caplog.text


def test_a_record_is_checked() -> None:
    """H58."""
    with pytest.raises(ConfigError, match="the capacity of pool 'all' of cartridge 'stub' must be an integer of at l"):
        msgspec.structs.replace(STUB, pools={"all": -1})
    with pytest.raises(ConfigError, match="keep_alive of cartridge 'stub' must be above 0 seconds, not 0"):
        msgspec.structs.replace(STUB, keep_alive=0)


async def test_refused_capacities_are_told_and_cost_nothing() -> None:
    """H50: the ERR counts as the reply."""
    async with bench(STUB, settings=SETTINGS) as it:
        it.host.set_capacities("stub", {"nope": 1})
        held = it.relay.call(stub.HOLD).body()
        await it.relay.until(lambda: "refused the capacities {'nope': 1}" in (it.cartridge("stub")["trouble"] or ""))
        assert it.cartridge("stub")["desired_capacities"] == {}
        assert it.state("stub") == "running"
        assert it.protocol["drops"]["total"] == 0
        held.cancel()
        await held.failed("CANCELLED")
        with pytest.raises(ConfigError, match=r"cartridge 'stub' has no pool 'nope'; its pools are: .*engine"):
            it.host.set_capacities("stub", {"nope": 1})


async def test_capacities_are_checked() -> None:
    """H49."""
    async with bench(STUB) as it:
        with pytest.raises(ConfigError, match="there is no cartridge 'x'"):
            it.host.set_capacities("x", {})
        with pytest.raises(ConfigError, match="must be an integer of at least 0, not -1"):
            it.host.set_capacities("stub", {"all": -1})
