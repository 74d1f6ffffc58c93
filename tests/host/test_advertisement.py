"""What the host tells the relay of itself, and when."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from capdag.errors import AttributionClass
from capdag.host import CartridgeRecord
from capdag.host.exchange import fitting
from capdag.wire import (
    ALL_POOL,
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    CancelReason,
    Failure,
    FrameType,
    cancel_frame,
    err_frame,
)
from capdag.wire.limits import LEAST_LIMITS
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
        await it.relay.until(lambda: it.relay.notices[-1].limits == LEAST_LIMITS)
        await it.host.shutdown()
        assert it.relay.notices[-1].limits == LEAST_LIMITS


def described(name: str, length: int) -> CartridgeRecord:
    return CartridgeRecord(name, ["true"], [{**cap_object(f"cap:{name}"), "documentation": "x" * length}])


@LINKS
async def test_notice_always_fits_and_the_longest_cartridges_are_left_out(
    link: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H65."""
    sizes = {"long": 17_000, "small": 100, "longer": 18_000, "longest": 40_000, "medium": 9_000}
    settings = msgspec.structs.replace(QUICK, limits=DEFAULT_LIMITS._replace(max_frame=32_000))
    async with bench(*(described(name, size) for name, size in sizes.items()), link=link, settings=settings) as it:
        for _ in range(3):
            it.host.reset("small")
            it.host._turn(it.host._readvertise)
        await it.relay.until(lambda: len(it.relay.notices) >= 4)
        assert it.relay.caps() == ["cap:effect=none", "cap:long", "cap:small", "cap:medium"]
        told = it.relay.advertised()
        assert list(told) == ["identity", *sizes]
        for name in ("longer", "longest"):
            assert "longer than one frame" in told[name]["attachment_error"]["message"]
            assert "longer than one frame" in it.cartridge(name)["trouble"]
        assert it.cartridge("long")["trouble"] is None
    lines = [entry.getMessage() for entry in caplog.records if "longer than one frame" in entry.getMessage()]
    assert [line.split(":")[0] for line in lines] == ["cartridge 'longer'", "cartridge 'longest'"]


async def test_more_cartridges_than_a_notice_can_name() -> None:
    """H65."""
    settings = msgspec.structs.replace(QUICK, limits=DEFAULT_LIMITS._replace(max_frame=16_384))
    async with bench(*(described(f"n{number}", 2_000) for number in range(60)), settings=settings) as it:
        assert it.relay.first is not None
        assert 12_000 < len(it.relay.first.body) <= 16_384
        assert it.relay.caps()[0] == "cap:effect=none"


@pytest.mark.parametrize("max_frame", [16_384, DEFAULT_LIMITS.max_frame])
def test_what_the_host_quotes_is_cut_where_it_does_not_fit(max_frame: int) -> None:
    """H65."""
    text = "x" * max_frame
    failure = Failure("MINE", AttributionClass.USER, text, {"stderr": text})
    for frame in (err_frame(b"r" * 16, failure, xid=7, seq=3), cancel_frame(b"r" * 16, CancelReason(message=text))):
        view = fitting(frame, max_frame)
        assert len(view.body) < 1_300
        assert view.meta["message"] == f"{text[:1000]}… ({max_frame} characters)"
        assert (view.type, view.id, view.xid, view.seq) == (frame.frame_type, frame.id, frame.routing_id, frame.seq)


async def test_long_cancel_does_not_end_a_cartridge_with_small_frames(caplog: pytest.LogCaptureFixture) -> None:
    """H65."""
    async with bench(record("SmallWindow")) as it:
        call = it.relay.call(CAP)
        await it.relay.until(lambda: it.cartridge()["active"] == 1)
        call.cancel(CancelReason(message="x" * 50_000))
        await call.failed("CANCELLED")
    assert "too small frames" not in caplog.text
