"""Heartbeats: probed, late, healed, killed; and the ones that cartridges send."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import trio

from capdag.errors import AttributionClass
from capdag.host import HostSettings
from capdag.host.cartridge import Cartridge
from capdag.host.endings import Endings
from capdag.host.exchange import Exchange
from capdag.host.handshake import Handshake, Step
from capdag.host.health import Health, Heartbeat, Pulse
from capdag.host.inventory import build_notify
from capdag.wire import (
    DEFAULT_LIMITS,
    Failure,
    Frame,
    FrameType,
    MessageId,
    PoolState,
    err_frame,
    view_of,
    write_pools,
)
from capdag.wire.blocks import Parcel, single_frames
from capdag.wire.heartbeats import PROBES_A_SECOND
from capdag.wire.manifest import read_manifest
from tests.host.driver import LINKS, QUICK, bench, record
from tests.misbehave import CAP, GOOD, manifest


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


class Process:
    """A process; if it does not read, what it is sent stays queued."""

    def __init__(self) -> None:
        self.bytes_queued = 0
        self.reads = True
        self.sent = 0

    def send(self, batch: Sequence[Parcel]) -> None:
        self.sent += len(batch)
        if not self.reads:
            self.bytes_queued += sum(len(view.body) for view in single_frames(batch))

    def kill(self, failure: Failure) -> None:
        raise AssertionError(failure)

    def stop(self) -> None:
        raise AssertionError

    def wake(self) -> None:
        pass


class Ward:
    """A cartridge in the care of a host's health, without a process. `now` is the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.exchange = Exchange(HostSettings(), lambda: self.now, lambda: 0.0)
        self.health = Health(self.exchange, Endings(self.exchange))
        self.cartridge, self.port = Cartridge(record(), HostSettings()), Process()
        self.cartridge.port = self.port
        self.health.begin(self.cartridge)

    def hear(self, beat_id: MessageId, meta: dict[str, Any] | None = None) -> int:
        """Take a HEARTBEAT of the cartridge; returns how many frames it has been sent for it."""
        before = self.port.sent
        self.health.heard(self.cartridge, view_of(Frame(FrameType.HEARTBEAT, beat_id, meta=meta)))
        self.exchange.flush_down()
        return self.port.sent - before

    def probe(self) -> MessageId:
        """Let the next probe go out; returns its id."""
        self.now += 30
        self.health.check(self.cartridge)
        assert self.cartridge.heartbeat is not None
        assert self.cartridge.heartbeat.probe_id is not None
        return self.cartridge.heartbeat.probe_id

    @property
    def lost(self) -> dict[tuple[str, str], int]:
        return dict(self.exchange.counts.drops)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]


def test_cartridge_that_beats_and_does_not_read_is_owed_one_reply() -> None:
    """H31."""
    ward = Ward()
    ward.port.reads = False
    assert sum(ward.hear(number) for number in range(10)) == 1
    assert ward.lost == {("overrun", "heartbeat"): 9}
    ward.port.bytes_queued = 0
    assert ward.hear(100) == 1


@pytest.mark.parametrize("key", ["pools", "drops_total", "stragglers_total", "overruns_total"])
def test_reply_under_an_id_of_its_own_is_not_answered(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """H59."""
    ward = Ward()
    assert sum(ward.hear(number, {key: 0}) for number in range(200)) == 0
    assert ward.lost == {("no_route", "heartbeat"): 200}
    (line,) = warnings(caplog)
    assert line.startswith("cartridge 'cart': dropped HEARTBEAT")
    assert "no probe has this id: a reply has the id of the probe that it answers" in line


def test_answer_to_an_answer_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    """H59: a cartridge that sends back whatever it is sent, without meta, cannot be told from one that probes."""
    ward = Ward()
    assert ward.hear(7) == 1
    assert sum(ward.hear(7) for _ in range(200)) == 0
    assert ward.lost == {("no_route", "heartbeat"): 200}
    (line,) = warnings(caplog)
    assert "this id was just answered" in line
    ward.now += 1
    assert ward.hear(7) == 1  # one that has no other id is answered once a second


def test_probes_that_are_answered_in_a_second_are_few_whatever_ids_they_have(caplog: pytest.LogCaptureFixture) -> None:
    """H59."""
    ward = Ward()
    for _ in range(3):
        assert sum(ward.hear(os.urandom(16)) for _ in range(500)) == PROBES_A_SECOND == 16
        ward.now += 1
    assert ward.lost == {("overrun", "heartbeat"): 3 * (500 - 16)}
    (line,) = warnings(caplog)
    assert "more than 16 probes came in a second" in line


def test_heartbeats_before_the_end_of_the_handshake_are_few_too() -> None:
    """H59."""
    handshake = Handshake(DEFAULT_LIMITS)
    handshake.step = Step.IDENTITY
    beats = [view_of(Frame(FrameType.HEARTBEAT, number)) for number in range(100)]
    assert sum(len(handshake.feed(beat)) for beat in beats) == 16
    assert handshake.lost == beats[16:]


@pytest.mark.parametrize("misdeed", ["BeatsUnderAnyId", "AnswersEveryBeat"])
async def test_storm_of_heartbeats_does_not_begin(misdeed: str) -> None:
    """H59: each reply of theirs would be answered, and each answer replied to."""
    async with bench(record(misdeed), settings=beats(0.5, 0.1)) as it:
        await it.relay.call(GOOD).body(b"x").succeeded()
        await it.relay.until(lambda: it.state() == "unhealthy")
        await trio.sleep(0.1)
        assert 1 <= it.protocol["drops"]["by_reason_frame_type"]["no_route"]["heartbeat"] <= 2 * PROBES_A_SECOND


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        (None, "pools must be there"),
        ({"drops_total": 0}, "pools must be there"),
        ({"drops_total": "many"}, "drops_total must be an integer of at least 0, not 'many'"),
        ({"overruns_total": -1}, "overruns_total must be an integer of at least 0, not -1"),
        ({"rss_mb": math.nan}, "rss_mb must be an integer of at least 0, not nan"),
        ({"footprint_mb": math.inf}, "footprint_mb must be an integer of at least 0, not inf"),
        ({"stragglers_total": True}, "stragglers_total must be an integer of at least 0, not True"),
    ],
)
def test_reply_that_says_too_little_heals_and_is_told_once(
    meta: dict[str, Any] | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H60."""
    ward = Ward()
    for _ in range(3):
        ward.hear(ward.probe(), meta)
    assert ward.cartridge.reported == ({"drops_total": 0} if meta == {"drops_total": 0} else {})
    lines = [line for line in warnings(caplog) if told in line]
    assert len(lines) == 1
    assert lines[0].startswith("cartridge 'cart', in heartbeat replies: ")
    build_notify(ward.exchange, [ward.cartridge])  # nothing of it is passed on


def test_pools_that_a_reply_leaves_out_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """H60: they have no bound from here on."""
    ward = Ward()
    ward.cartridge.manifest = read_manifest(json.dumps(manifest("cart", [GOOD])).encode())
    pools = dict.fromkeys(["cap:effect=none", GOOD, "all"], PoolState(2, 2))
    ward.hear(ward.probe(), {"pools": write_pools(pools)})
    assert warnings(caplog) == []
    for _ in range(2):
        ward.hear(ward.probe(), {"pools": write_pools({"all": PoolState(2, 2)})})
    (line,) = warnings(caplog)
    assert line.startswith("cartridge 'cart', in heartbeat replies: pools must have one for each cap")
    assert line.endswith(f"there is none for 'cap:effect=none', {GOOD!r}")


def test_err_for_a_probe_that_asked_for_nothing_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """H50, H60."""
    ward = Ward()
    no = Failure("X", AttributionClass.INTERNAL, "no heartbeat today")
    for _ in range(3):
        assert ward.health.refused(ward.cartridge, view_of(err_frame(ward.probe(), no)))
    (line,) = warnings(caplog)
    assert "cartridge 'cart' answers heartbeats with ERR X: no heartbeat today" in line
    assert ward.cartridge.trouble is None


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
