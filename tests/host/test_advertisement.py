"""What the host tells the relay of itself, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from capdag.wire import ALL_POOL, DEFAULT_LIMITS, IDENTITY_CAP, FrameType
from tests.host.driver import LINKS, QUICK, Bench, bench, record
from tests.misbehave import CALL, CAP, GOOD, cap_object


def pool(**counts: int) -> dict[str, int]:
    return {"declared": 0, "configured": 0, "active": 0, "queued": 0, **counts}


def stats(it: Bench) -> dict[str, Any]:
    found: dict[str, Any] = it.relay.advertised()["cart"]["runtime_stats"]
    return found


@LINKS
async def test_advertisement_is_the_first_frame_and_has_the_known_caps(link: str) -> None:
    """H1, H37, H38."""
    async with bench(record(caps=[CAP]), link=link, policy=False) as it:
        assert it.relay.first is not None
        assert it.relay.first.type is FrameType.RELAY_NOTIFY
        assert it.relay.caps() == [IDENTITY_CAP, CAP]
        install = it.relay.advertised()["cart"]
        assert install["cap_groups"] == [{"name": "cart", "caps": [cap_object(CAP)]}]
        assert (install["registry_url"], install["channel"], install["version"]) == (None, "release", "")
        assert len(install["sha256"]) == 64
        assert install["runtime_stats"] == {
            "running": False,
            "pid": None,
            "active_request_count": 0,
            "peer_request_count": 0,
            "memory_footprint_mb": 0,
            "memory_rss_mb": 0,
            "last_heartbeat_unix_seconds": None,
            "restart_count": 0,
            "protocol_drops_total": 0,
            "pools": {CAP: pool(), ALL_POOL: pool()},
        }
        assert it.relay.notices[-1].limits == DEFAULT_LIMITS


async def test_identity_is_one_record_of_the_host_with_its_pools() -> None:
    """H38."""
    async with bench(record(), record(name="other")) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        await it.relay.until(lambda: stats(it)["running"])
        assert it.relay.caps().count(IDENTITY_CAP) == 1
        own = it.relay.advertised()["identity"]
        assert own["runtime_stats"]["running"] is True
        assert own["runtime_stats"]["pools"] == {IDENTITY_CAP: pool(), ALL_POOL: pool()}


async def test_manifest_replaces_the_known_caps_and_keeps_their_metadata() -> None:
    """H2."""
    async with bench(record(known=[CAP, "cap:forgotten"])) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        await it.relay.until(lambda: GOOD in it.relay.caps())
        assert it.relay.caps() == [IDENTITY_CAP, CAP, GOOD, CALL]
        (group,) = it.relay.advertised()["cart"]["cap_groups"]
        assert group["caps"][1]["metadata"] == {"model": "Original/Id"}
        assert it.relay.advertised()["cart"]["version"] == "1"
        await it.relay.call("cap:forgotten").failed("NO_HANDLER")
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


@LINKS
async def test_start_and_death_are_advertised_at_once(link: str) -> None:
    """H2, H37, H49."""
    patient = msgspec.structs.replace(QUICK, republish_interval=60)
    async with bench(record("Dies"), link=link, settings=patient) as it:
        await it.relay.call(GOOD).body(b"x").succeeded()
        await it.relay.until(lambda: stats(it)["running"])
        assert stats(it)["pid"] == it.cartridge()["pid"]
        assert stats(it)["pools"][CAP] == pool(declared=4, configured=4)
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
        await it.relay.until(lambda: not stats(it)["running"])
        assert stats(it)["pid"] is None
        assert CAP in it.relay.caps()
        await it.relay.call(GOOD).body(b"x").succeeded()
        await it.relay.until(lambda: stats(it)["running"])
        assert stats(it)["restart_count"] == 1


async def test_counts_are_repeated_while_something_runs() -> None:
    """H37."""
    settings = msgspec.structs.replace(QUICK, republish_interval=0.05)
    async with bench(record(), settings=settings) as it:
        await trio.sleep(0.12)
        assert len(it.relay.notices) == 1
        await it.relay.call(CAP).body(b"x").succeeded()
        before = len(it.relay.notices)
        await it.relay.until(lambda: len(it.relay.notices) >= before + 3)
        assert it.relay.notices[-1].stats == it.protocol


async def test_limits_shrink_to_the_smallest_cartridge_and_never_grow() -> None:
    """H39."""
    async with bench(record("SmallWindow")) as it:
        assert it.relay.notices[-1].limits == DEFAULT_LIMITS
        await it.relay.call(GOOD).body(b"x").succeeded()
        small = DEFAULT_LIMITS._replace(initial_credit=2, max_frame=4096, max_chunk=1024)
        await it.relay.until(lambda: it.relay.notices[-1].limits == small)
        await it.host.shutdown()
        assert it.relay.notices[-1].limits == small
