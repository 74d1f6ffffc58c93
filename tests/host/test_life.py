"""A cartridge's life: started at the first request, given what waited, stopped when idle, gone at the end."""

from __future__ import annotations

import json
import logging
import math
import sys

import msgspec
import pytest
import trio

from capdag.errors import ConfigError
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.transport import local_link_pair
from capdag.transport.guardian import new_run_id, open_guardian
from capdag.wire import NetworkPolicy
from tests.host.driver import LINKS, QUICK, Relay, bench, record
from tests.leaks import alive
from tests.misbehave import CAP, GOOD


def quick(**changes: object) -> HostSettings:
    return msgspec.structs.replace(QUICK, **changes)


@LINKS
async def test_first_request_starts_the_process(link: str) -> None:
    """H1, H4."""
    async with bench(record(), link=link, guarded=True) as it:
        assert it.state() == "registered"
        assert await it.relay.call(CAP).body(b"hello", b" world").succeeded() == b"hello world"
        assert it.state() == "running"
        assert await it.relay.call(CAP).body(b"again").succeeded() == b"again"
        assert it.cartridge()["restarts"] == 0


@LINKS
async def test_requests_that_come_together_start_one_process(link: str) -> None:
    """H4."""
    async with bench(record(), link=link) as it:
        calls = [it.relay.call(CAP).body(b"%d" % number, b"!") for number in range(20)]
        await it.relay.until(lambda: it.state() == "starting")
        for number, call in enumerate(calls):
            assert await call.succeeded() == b"%d!" % number
        assert it.cartridge()["restarts"] == 0


async def test_what_waited_reaches_the_process_in_order_after_the_policy() -> None:
    """H4, H6."""
    async with bench(record("TellsEnvironment")) as it:
        told = json.loads(await it.relay.call(CAP).body(b"a", b"b").succeeded())
    handshake = ["HELLO", "REQ", "STREAM_START", "CHUNK", "STREAM_END", "END"]
    assert told["kinds"] == [*handshake, "POLICY", "REQ", "STREAM_START", "CHUNK", "CHUNK", "STREAM_END", "END"]
    assert told["policy"] == ["no_telemetry"]


async def test_process_gets_three_descriptors_its_settings_and_the_run_id() -> None:
    """H5."""
    given = msgspec.structs.replace(record("TellsEnvironment"), settings={"model": "x", "caps": [CAP]})
    async with bench(given) as it:
        told = json.loads(await it.relay.call(CAP).body().succeeded())
    environment = told["environment"]
    assert told["descriptors"] == [0, 1, 2, 3]  # the last is the listing's own
    assert json.loads(environment["CAPDAG_CONFIG"]) == {"model": "x", "caps": [CAP]}
    assert environment["CAPDAG_RUN_ID"]
    engines = {"GOMP_SPINCOUNT": "0", "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    assert engines.items() <= environment.items()


@LINKS
async def test_exit_before_hello_is_told_at_once_and_then_paused(link: str) -> None:
    """H7, H8."""
    async with bench(record("ExitBeforeHello"), link=link, settings=quick(first_pause=30.0)) as it:
        began = trio.current_time()
        calls = [it.relay.call(CAP).body(b"x"), it.relay.call(GOOD).body(b"x")]
        for call in calls:
            message = await call.failed("SPAWN_FAILED")
            assert "no such weights: model.gguf" in message
            assert "exited with status 3" in message
        assert trio.current_time() - began < 1
        message = await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert "the next try is in 29." in message or "the next try is in 30." in message
        assert it.state() == "dead"
        assert it.cartridge()["last_exit"] == "exited with status 3"
        it.host.reset("cart")
        await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert it.cartridge()["restarts"] == 1


async def test_pause_doubles_up_to_its_longest_and_ends_with_a_good_start() -> None:
    """H8."""
    settings = HostSettings(first_pause=1, longest_pause=60)
    assert [settings.pause_after(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    async with bench(record("ExitBeforeHello"), settings=quick(first_pause=0.02)) as it:
        for failures in (1, 2, 3):
            await it.relay.call(CAP).failed("SPAWN_FAILED")
            assert it.cartridge()["failed_starts"] == failures
            await it.relay.until(lambda: it.cartridge()["pause"] == 0)
        assert it.cartridge()["restarts"] == 2


@pytest.mark.parametrize(
    ("misdeed", "waited"), [("Silent", "no HELLO came in 0.3 s"), ("SilentIdentity", "no IDENTITY came in 0.3 s")]
)
async def test_silence_at_the_start_ends_at_its_deadline(misdeed: str, waited: str) -> None:
    """H7."""
    async with bench(record(misdeed), settings=quick(handshake_timeout=0.3, identity_timeout=0.3)) as it:
        assert waited in await it.relay.call(CAP).body(b"x").failed("SPAWN_FAILED")
        assert it.cartridge()["failed_starts"] == 1


@LINKS
@pytest.mark.parametrize(
    ("misdeed", "told"),
    [
        ("WrongVersion", "protocol version 5"),
        ("WrongIdentity", "not the nonce"),
        ("FailingIdentity", "the END of the identity answer must have exit_code 0, an integer; it has 1"),
        ("TinyFrames", "HELLO says max_frame 40, and a cartridge must take at least 16384"),
        ("PrintsAtStart", "Loading model..."),
        ("TracebackOnStdout", "exited with status 1"),
    ],
)
async def test_wrong_answer_is_permanent_until_a_reset(link: str, misdeed: str, told: str) -> None:
    """H9, H38, H64."""
    async with bench(record(misdeed), link=link) as it:
        assert told in await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert it.state() == "broken"
        assert "--reset cart" in await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert it.cartridge()["restarts"] == 0
        await it.relay.until(lambda: "attachment_error" in it.relay.advertised()["cart"])
        assert told in it.relay.advertised()["cart"]["attachment_error"]["message"]
        it.host.reset("cart")
        assert it.state() == "registered"
        await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert it.cartridge()["restarts"] == 1


async def test_cartridge_that_is_started_early_serves_the_first_request() -> None:
    """H53."""
    async with bench(record(known=[])) as it:
        it.host.start("cart")
        assert it.state() == "starting"
        await it.relay.until(lambda: CAP in it.relay.caps())
        pid = it.cartridge()["pid"]
        it.host.start("cart")
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        assert (it.cartridge()["pid"], it.cartridge()["restarts"]) == (pid, 0)


async def test_warm_cartridge_is_started_with_the_host() -> None:
    """H57."""
    warm, cold = msgspec.structs.replace(record(name="warm"), warm=True), record(name="cold")
    async with bench(warm, cold) as it:
        await it.relay.until(lambda: it.state("warm") == "running")
        assert it.state("cold") == "registered"
        it.host.sync_roster([warm, msgspec.structs.replace(cold, warm=True)])
        await it.relay.until(lambda: it.state("cold") == "running")
        assert it.cartridge("warm")["restarts"] == 0


async def test_each_record_says_how_long_its_process_stays_idle() -> None:
    """H32."""
    short = msgspec.structs.replace(record(name="short"), keep_alive=0.05, warm=True)
    always = msgspec.structs.replace(record(name="always"), keep_alive=math.inf, warm=True)
    common = msgspec.structs.replace(record(name="common"), warm=True)
    async with bench(short, always, common, settings=quick(idle_timeout=0.6)) as it:
        await it.relay.until(lambda: it.state("short") == "idle")
        await it.relay.until(lambda: it.state("common") == "running")
        await it.relay.until(lambda: it.state("common") == "idle")
        assert it.state("always") == "running"


async def test_of_equals_one_that_can_serve_is_chosen() -> None:
    """H14: neither the broken nor the one in a pause, though they were registered first."""
    bad = [record("WrongVersion", name="broken"), record("ExitBeforeHello", name="paused")]
    async with bench(*bad, record(name="good"), settings=quick(first_pause=30.0)) as it:
        for refusing in ("broken", "paused"):
            assert f"cartridge '{refusing}'" in await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        assert it.state("good") == "running"


async def test_program_that_does_not_exist_is_named() -> None:
    """H10."""
    given = msgspec.structs.replace(record(), command=["/nowhere/cartridge"])
    async with bench(given) as it:
        message = await it.relay.call(CAP).failed("SPAWN_FAILED")
        assert message.startswith("cartridge 'cart' did not start: cannot start /nowhere/cartridge")
        assert it.state() == "dead"


async def test_idle_process_is_stopped_and_started_again() -> None:
    """H32."""
    async with bench(record(), settings=quick(idle_timeout=0.15), guarded=True) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        pid = it.cartridge()["pid"]
        await it.relay.until(lambda: it.state() == "idle")
        assert not alive(pid)
        assert (it.cartridge()["last_exit"], it.cartridge()["trouble"]) == (None, None)
        assert await it.relay.call(CAP).body(b"y").succeeded() == b"y"
        assert it.cartridge()["restarts"] == 0


async def test_request_that_comes_while_the_process_is_being_stopped_waits_for_the_next() -> None:
    """H3, H32."""
    async with bench(record("IgnoresSigterm"), settings=quick(idle_timeout=0.05, stop_grace=0.5)) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        await it.relay.until(lambda: it.state() == "stopping")
        call = it.relay.call(CAP).body(b"y")
        await it.relay.until(lambda: it.cartridge()["waiting"] == 1)
        assert await call.succeeded() == b"y"
        assert it.cartridge()["restarts"] == 0


@LINKS
async def test_shutdown_ends_everything_held_with_aborted(link: str) -> None:
    """H40."""
    async with bench(record("IgnoresCancel"), record("Silent", name="other", caps=[]), link=link) as it:
        served = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.state() == "running")
        await it.host.shutdown()
        assert "shutting down" in await served.failed("ABORTED")
        assert it.relay.notices[-1].installs == []
        await it.relay.call(CAP).failed("ABORTED")
        assert it.state() == "dead"


async def test_shutdown_ends_a_start_and_what_waits_for_it() -> None:
    """H40."""
    async with bench(record("Silent")) as it:
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.cartridge()["pid"] is not None)
        await it.host.shutdown()
        await call.failed("ABORTED")
        assert it.state() == "dead"


async def test_shutdown_of_a_process_that_ignores_sigterm_is_bounded() -> None:
    """H40."""
    async with bench(record("IgnoresSigterm")) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        pid = it.cartridge()["pid"]
        with trio.fail_after(QUICK.stop_grace + 5):
            await it.host.shutdown()
        assert not alive(pid)


async def test_cancelled_host_kills_and_tells() -> None:
    """H40."""
    ours, theirs = local_link_pair("relay")
    async with open_guardian(new_run_id()) as guardian:
        host = HostRuntime([record("IgnoresCancel")], theirs, guardian, QUICK)
        relay = Relay(ours)
        ours.connect(relay)
        theirs.connect(host.receiver)
        async with trio.open_nursery() as nursery:
            await nursery.start(host.run)
            relay.policy()
            call = relay.call(CAP).body(b"x")
            await relay.until(lambda: host.snapshot()["cartridges"][0]["state"] == "running")
            pid = host.snapshot()["cartridges"][0]["pid"]
            nursery.cancel_scope.cancel()
        assert not alive(pid)
        await call.failed("ABORTED")
        assert host.snapshot()["protocol"]["incoming_rxids"] == 0
        await relay.call(CAP).failed("ABORTED")


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope after so many steps of the tasks that keep a cartridge's process."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self.scope = scope
        self.left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.startswith(("cartridge ", "capdag.host.process.", "capdag.transport.")):
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


@pytest.mark.parametrize(
    ("misdeed", "steps"),
    [*(("Nothing", steps) for steps in range(1, 25)), *(("ExitBeforeHello", steps) for steps in range(8, 20, 2))],
)
async def test_start_cancelled_at_any_checkpoint_leaks_nothing(misdeed: str, steps: int) -> None:
    """H10."""
    ours, theirs = local_link_pair("relay")
    async with open_guardian(new_run_id()) as guardian, trio.open_nursery() as nursery:
        host = HostRuntime([record(misdeed)], theirs, guardian, QUICK)
        relay = Relay(ours)
        ours.connect(relay)
        theirs.connect(host.receiver)
        await nursery.start(host.run)
        relay.policy()
        instrument = CancelAtStep(nursery.cancel_scope, steps)
        trio.lowlevel.add_instrument(instrument)
        call = relay.call(CAP).body(b"x")
        with trio.move_on_after(2):
            await relay.until(lambda: call.terminals)
        trio.lowlevel.remove_instrument(instrument)
        nursery.cancel_scope.cancel()
    (terminal,) = call.terminals
    allowed = {"Nothing": {None, "ABORTED"}, "ExitBeforeHello": {"SPAWN_FAILED", "ABORTED"}}
    assert terminal.meta.get("code") in allowed[misdeed]


async def test_cancel_while_starting_ends_the_request_and_not_the_start() -> None:
    """H28."""
    async with bench(record()) as it:
        first, second = it.relay.call(CAP).body(b"x"), it.relay.call(CAP).body(b"y")
        first.cancel()
        assert (await first.failed("CANCELLED")).endswith("(while queued)")
        assert await second.succeeded() == b"y"
        third = it.relay.call(CAP)
        third.cancel()
        await third.failed("CANCELLED")
        await it.relay.until(lambda: it.state() == "running")


async def test_request_before_any_policy_is_refused() -> None:
    """H12."""
    async with bench(record(), policy=False) as it:
        assert "POLICY" in await it.relay.call(CAP).failed("PROTOCOL_VIOLATION")
        assert it.state() == "registered"
        it.relay.policy(NetworkPolicy.OFFLINE)
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        assert it.host.snapshot()["policy"] == "offline"


async def test_policy_reaches_running_processes_and_later_ones() -> None:
    """H12."""
    async with bench(record("TellsEnvironment")) as it:
        await it.relay.call(CAP).body().succeeded()
        it.relay.policy(NetworkPolicy.FULL)
        told = json.loads(await it.relay.call(CAP).body().succeeded())
        assert told["policy"] == ["no_telemetry", "full"]


async def test_records_are_checked() -> None:
    """H1."""
    ours, _ = local_link_pair("relay")
    with pytest.raises(ConfigError, match="two cartridges have the id 'cart'"):
        HostRuntime([record(), record()], ours, None)
    with pytest.raises(ConfigError, match="empty command"):
        CartridgeRecord("x", [])
    with pytest.raises(ConfigError, match="cap 'no urn'"):
        CartridgeRecord("x", [sys.executable], [{"urn": "no urn"}])
    with pytest.raises(ConfigError, match="heartbeat_timeout"):
        HostSettings(heartbeat_interval=1, heartbeat_timeout=2)
    host = HostRuntime([record()], ours, None)
    with pytest.raises(ConfigError, match="there is no cartridge 'x'; the cartridges are: cart"):
        host.reset("x")


async def test_failed_start_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """H7."""
    async with bench(record("ExitBeforeHello")) as it:
        await it.relay.call(CAP).failed("SPAWN_FAILED")
    errors = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    assert any("SPAWN_FAILED: cartridge 'cart' exited with status 3" in error for error in errors)
