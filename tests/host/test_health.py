"""Heartbeats: probed, late, healed, killed; and the ones that cartridges send."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from capdag.host import HostSettings
from capdag.host.cartridge import Cartridge
from capdag.host.endings import Endings
from capdag.host.exchange import Exchange
from capdag.host.health import Health, Heartbeat, Pulse
from capdag.wire import Failure, Frame, FrameType, view_of
from capdag.wire.blocks import Parcel, single_frames
from tests.host.driver import LINKS, QUICK, bench, record
from tests.misbehave import CAP, GOOD


def beats(interval: float, timeout: float) -> HostSettings:
    return msgspec.structs.replace(QUICK, heartbeat_interval=interval, heartbeat_timeout=timeout)


def test_probe_reply_and_the_next_probe() -> None:
    """H30."""
    beat = Heartbeat(30, 10, now=100)
    assert (beat.due, beat.tick(129)) == (130, Pulse.NOTHING)
    assert beat.tick(130) is Pulse.PROBE
    probe = beat.probe_id
    assert probe is not None
    assert len(probe) == 16
    assert beat.due == 140
    assert beat.reply(probe, 131)
    assert beat.due == 160
    assert beat.tick(160) is Pulse.PROBE
    assert beat.probe_id != probe


def test_late_reply_heals() -> None:
    """H30."""
    beat = Heartbeat(30, 10, now=0)
    assert [beat.tick(30), beat.tick(40)] == [Pulse.PROBE, Pulse.LATE]
    assert (beat.is_late, beat.due) == (True, 60)
    assert beat.reply(beat.probe_id, 55)
    assert (beat.is_late, beat.due) == (False, 60)


def test_no_reply_by_the_next_probe_is_the_end() -> None:
    """H30."""
    beat = Heartbeat(30, 10, now=0)
    assert [beat.tick(30), beat.tick(40), beat.tick(59), beat.tick(60)] == [
        Pulse.PROBE,
        Pulse.LATE,
        Pulse.NOTHING,
        Pulse.KILL,
    ]
    assert beat.due == math.inf


def test_host_that_was_held_up_itself_reads_before_it_kills() -> None:
    """H30."""
    beat = Heartbeat(30, 10, now=0)
    assert [beat.tick(30), beat.tick(500)] == [Pulse.PROBE, Pulse.LATE]
    assert beat.due == 520


def test_reply_to_nothing_is_none_and_a_second_reply_is_known_as_ours() -> None:
    """H31."""
    beat = Heartbeat(30, 10, now=0)
    assert not beat.reply(b"x" * 16, 1)
    beat.tick(30)
    probe = beat.probe_id
    assert beat.reply(probe, 31)
    assert not beat.reply(probe, 31)
    assert beat.is_probe(probe)
    assert not beat.is_probe(4711)


@LINKS
async def test_reply_brings_pools_memory_and_drops(link: str) -> None:
    """H31."""
    async with bench(record(), link=link, settings=beats(0.1, 0.05)) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        held = it.relay.call(CAP)
        await it.relay.until(lambda: it.relay.advertised()["cart"]["runtime_stats"]["memory_rss_mb"] == 7)
        stats = it.relay.advertised()["cart"]["runtime_stats"]
        assert stats["protocol_drops_total"] == 3
        assert stats["last_heartbeat_unix_seconds"] > 1_700_000_000
        await it.relay.until(lambda: it.relay.advertised()["cart"]["runtime_stats"]["pools"]["all"]["active"] == 1)
        held.cancel()
        await held.failed("CANCELLED")


@LINKS
async def test_late_cartridge_takes_no_work_until_it_answers(link: str) -> None:
    """H30, H37."""
    async with bench(record("LateHeartbeat"), link=link, settings=beats(0.3, 0.1)) as it:
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.state() == "unhealthy")
        await it.relay.until(lambda: CAP not in it.relay.caps())
        await it.relay.call(GOOD).failed("CARTRIDGE_UNHEALTHY")
        await it.relay.until(lambda: it.state() == "running")
        await it.relay.until(lambda: CAP in it.relay.caps())
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert await call.succeeded() == b"x"
        assert it.cartridge()["restarts"] == 0


async def test_late_cartridge_leaves_its_work_to_an_equal() -> None:
    """H14."""
    async with bench(record("LateHeartbeat"), record(name="other"), settings=beats(0.3, 0.1)) as it:
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.state() == "unhealthy")
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert it.state("other") == "running"
        assert await call.succeeded() == b"x"


@LINKS
async def test_stopped_cartridge_is_killed_and_its_requests_told(link: str) -> None:
    """H30."""
    async with bench(record("StopsItself"), link=link, settings=beats(0.2, 0.1)) as it:
        call = it.relay.call(CAP).body(b"x")
        assert "did not answer a heartbeat" in await call.failed("CARTRIDGE_UNHEALTHY")
        assert it.cartridge()["last_exit"] == "was killed by SIGKILL"
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


async def test_frames_that_flow_while_a_probe_is_late_are_told_before_the_kill(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H30."""
    async with bench(record("NeverBeats"), settings=beats(0.2, 0.1)) as it:
        call = it.relay.call(CAP).body(b"x")
        await call.failed("CARTRIDGE_UNHEALTHY")
    assert any("still sends frames, but no heartbeat reply" in entry.getMessage() for entry in caplog.records)


class StuckPort:
    """A process that does not read: what it is sent stays queued."""

    def __init__(self) -> None:
        self.bytes_queued = 0
        self.sent = 0

    def send(self, batch: Sequence[Parcel]) -> None:
        self.sent += len(batch)
        self.bytes_queued += sum(len(view.body) for view in single_frames(batch))

    def kill(self, failure: Failure) -> None:
        raise AssertionError(failure)

    def stop(self) -> None:
        raise AssertionError

    def wake(self) -> None:
        pass


def test_cartridge_that_beats_and_does_not_read_is_owed_one_reply() -> None:
    """H31."""
    exchange = Exchange(HostSettings(), lambda: 0.0, lambda: 0.0)
    health = Health(exchange, Endings(exchange))
    cartridge, port = Cartridge(record(), HostSettings()), StuckPort()
    cartridge.port = port
    for number in range(100):
        health.heard(cartridge, view_of(Frame(FrameType.HEARTBEAT, number)))
        exchange.flush_down()
    assert port.sent == 1
    assert exchange.counts.drops["no_route", "heartbeat"] == 99
    port.bytes_queued = 0
    health.heard(cartridge, view_of(Frame(FrameType.HEARTBEAT, 100)))
    exchange.flush_down()
    assert port.sent == 2


@LINKS
async def test_heartbeat_of_a_cartridge_is_answered_and_stays_here(link: str) -> None:
    """H31."""
    async with bench(record("Beats"), link=link) as it:
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        assert it.relay.loose == []


async def test_second_reply_is_not_answered() -> None:
    """H31: it would be answered with another reply, and so on for ever."""
    async with bench(record("BeatsTwice"), settings=beats(0.1, 0.05)) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        await it.relay.until(
            lambda: it.protocol["drops"]["by_reason_frame_type"].get("no_route", {}).get("heartbeat", 0) >= 2
        )
        assert it.protocol["drops"]["total"] < 10


async def test_reply_with_bad_pools_is_a_violation() -> None:
    """H31."""
    async with bench(record("BadPools"), settings=beats(0.1, 0.05)) as it:
        call = it.relay.call(CAP)
        assert "bad pools" in await call.failed("PROTOCOL_VIOLATION")
