"""However a process ends: what it held gets one terminal, the next request a new process, nothing is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from capdag.errors import AttributionClass
from capdag.host.deaths import ProcessEnd
from capdag.wire import Failure, FrameType, failure_of
from tests.host.driver import LINKS, QUICK, Bench, bench, record
from tests.leaks import alive
from tests.misbehave import CAP, GOOD, ROOT


async def test_next_request_starts_a_new_process_after_a_kill() -> None:
    """H36."""
    async with bench(record("IgnoresCancel")) as it:
        held = [it.relay.call(CAP).body(b"x") for _ in range(3)]
        await it.relay.until(lambda: it.cartridge()["active"] == 3)
        pid = it.cartridge()["pid"]
        _kill(pid)
        for call in held:
            assert "killed by SIGKILL" in await call.failed("CARTRIDGE_DIED")
            assert len(call.terminals) == 1
        assert it.state() == "dead"
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"
        assert it.cartridge()["restarts"] == 1
        assert it.cartridge()["pid"] != pid


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@LINKS
@pytest.mark.parametrize(
    ("misdeed", "told"),
    [
        ("Dies", ["killed by SIGKILL", "about to die"]),
        ("Leaves", ["exited with status 0"]),
        ("DiesInAFrame", ["exited with status 1", "the stream ended inside a frame"]),
        ("ClosesStdout", ["was ended by the host (it had closed its stdout, and stayed)"]),
        ("LeavesGrandchild", ["killed by SIGKILL", "a grandchild remains"]),
    ],
)
async def test_death_in_mid_request_is_told_with_its_cause(link: str, misdeed: str, told: list[str]) -> None:
    """H18, H33."""
    async with bench(record(misdeed), link=link) as it:
        call = it.relay.call(CAP).body(b"piece")
        message = await call.failed("CARTRIDGE_DIED")
        assert all(part in message for part in ["cartridge 'cart'", *told]), message
        (terminal,) = call.terminals
        flow = [view.seq for view in call.frames if view.type is not FrameType.CREDIT]
        assert flow == list(range(len(flow)))
        assert failure_of(terminal.meta).attribution is AttributionClass.ENVIRONMENT
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


@pytest.mark.parametrize(
    ("misdeed", "told"),
    [
        ("ClosesStdoutAndReads", "was ended by the host (it had closed its stdout, and stayed)"),
        ("ClosesStdoutAndLeaves", "exited with status 0 (it had closed its stdout 0."),
    ],
)
async def test_stdout_that_is_closed_is_told_whatever_the_process_does_then(misdeed: str, told: str) -> None:
    """H33: its exit status alone would say nothing."""
    async with bench(record(misdeed), settings=msgspec.structs.replace(QUICK, exit_patience=0.5)) as it:
        assert told in await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")


@pytest.mark.parametrize("status", ["exited with status 0", "was killed by SIGTERM", "was killed by SIGKILL"])
def test_violation_is_told_in_the_same_words_however_the_host_was_rid_of_the_process(status: str) -> None:
    """H23, H33: which of the two is first, its exit once stdin is closed or the signal, is chance."""
    end = ProcessEnd("cart", status, violation="no frame", may_be_ours=True)
    assert end.death().message == "cartridge 'cart' broke the protocol: no frame; the host ended it"
    wrong = "cartridge 'cart' gave a wrong answer at its start: no nonce; the host ended it"
    assert end.failed_start("no nonce", None).message == wrong
    own = ProcessEnd("cart", "exited with status 3", violation="no frame")
    assert own.death().message == "cartridge 'cart' broke the protocol: no frame; it exited with status 3"


async def test_end_that_lay_in_the_pipe_counts() -> None:
    """H33."""
    async with bench(record("EndsAndLeaves")) as it:
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        await it.relay.until(lambda: it.state() == "dead")
        assert it.cartridge()["last_exit"] == "exited with status 0"


async def test_death_is_in_the_log_at_error_level(caplog: pytest.LogCaptureFixture) -> None:
    """H36."""
    async with bench(record("Dies")) as it:
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
    (error,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    assert error.startswith("CARTRIDGE_DIED: cartridge 'cart' was killed by SIGKILL")
    assert error.endswith("(1 requests ended by it); the last lines of its stderr:\nabout to die")


@LINKS
async def test_flooded_stderr_blocks_nobody(link: str) -> None:
    async with bench(record("FloodsStderr"), link=link) as it:
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"


@LINKS
async def test_caller_that_dies_gives_its_call_up(link: str) -> None:
    """H34: its own request gets the death; the callee an aborted body and a CANCEL as collateral."""
    async with bench(record("CallsAndWaits"), link=link) as it:
        it.relay.loops = False
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.relay.loose)
        assert it.protocol["outgoing_rids"] == 1
        _kill(it.cartridge()["pid"])
        await call.failed("CARTRIDGE_DIED")
        request, body_end, cancel = it.relay.loose
        assert {view.xid for view in it.relay.loose} == {None}
        assert {view.id for view in it.relay.loose} == {request.id}
        assert (body_end.type, cancel.type) == (FrameType.ERR, FrameType.CANCEL)
        assert body_end.seq == request.seq + 1
        for view in (body_end, cancel):
            assert view.meta["code"] == "ABORTED_COLLATERAL"
        it.check_empty()


@LINKS
async def test_callee_of_a_dead_caller_on_the_same_host_is_cancelled(link: str) -> None:
    """H34."""
    caller = record("CallsAndWaits", name="caller", caps=[CAP])
    callee = record("Nothing", name="callee", caps=[GOOD])
    async with bench(caller, callee, link=link) as it:
        call = it.relay.call(CAP).body(b"x")
        await it.relay.until(lambda: it.cartridge("callee")["active"] == 1)
        _kill(it.cartridge("caller")["pid"])
        await call.failed("CARTRIDGE_DIED")
        await it.relay.until(lambda: it.cartridge("callee")["active"] == 0)
        assert it.state("callee") == "running"
        it.check_empty()


def end(**facts: object) -> ProcessEnd:
    given: dict[str, object] = {"cartridge_id": "c", "status": "was killed by SIGKILL", "stderr": "a\nb", **facts}
    return ProcessEnd(**given)  # type: ignore[arg-type]


def test_words_of_each_death() -> None:
    """H33."""
    kinds = {
        end(): ("CARTRIDGE_DIED", "environment", "cartridge 'c' was killed by SIGKILL"),
        end(oom_killed=True): (
            "OOM_KILLED",
            "resource",
            "cartridge 'c' was killed by SIGKILL: give it more memory, or run less beside it",
        ),
        end(link="the stream ended inside a frame"): (
            "CARTRIDGE_DIED",
            "environment",
            "cartridge 'c' was killed by SIGKILL (the stream ended inside a frame)",
        ),
        end(violation="bad frame"): (
            "PROTOCOL_VIOLATION",
            "internal",
            "cartridge 'c' broke the protocol: bad frame; it was killed by SIGKILL",
        ),
        end(killed_for=Failure("CARTRIDGE_UNHEALTHY", AttributionClass.ENVIRONMENT, "no beat")): (
            "CARTRIDGE_UNHEALTHY",
            "environment",
            "no beat; it was killed by SIGKILL",
        ),
    }
    for how, told in kinds.items():
        failure = how.death()
        assert (failure.code, failure.attribution.value, failure.message) == told
        assert failure.detail == {"stderr": "a\nb"}
    assert end(stderr="").death().detail is None


async def test_grandchild_is_gone_with_the_process() -> None:
    """H33."""
    async with bench(record("LeavesGrandchild"), guarded=True) as it:
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
        await it.relay.until(lambda: not alive(_grandchild_of(it)))


def _grandchild_of(it: Bench) -> int:
    return int(str(it.cartridge()["trouble_stderr"]).split("a grandchild remains: ")[1].split()[0])


@LINKS
async def test_crash_after_crash_without_an_answer_pauses_the_starts(link: str) -> None:
    """H51: the first costs nothing, each further one in a row a longer pause; a reset ends it."""
    settings = msgspec.structs.replace(QUICK, first_pause=20.0)
    async with bench(record("Dies"), link=link, settings=settings) as it:
        for crashes in (1, 2):
            await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
            assert it.cartridge()["crashes"] == crashes
        assert 19 < it.cartridge()["pause"] <= 20
        assert it.cartridge()["trouble"].startswith("paused for ")
        message = await it.relay.call(GOOD).failed("SPAWN_FAILED")
        assert "killed by SIGKILL" in message
        assert "capdag ps --reset cart" in message
        it.host.reset("cart")
        assert (it.cartridge()["crashes"], it.cartridge()["pause"], it.cartridge()["trouble"]) == (0, 0, None)
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
        assert it.cartridge()["pause"] == 0


async def test_process_that_answered_before_it_crashed_is_started_again_at_once() -> None:
    """H51: what one request does to it is not held against the others."""
    async with bench(record("Dies"), settings=msgspec.structs.replace(QUICK, first_pause=20.0)) as it:
        for _ in range(4):
            assert await it.relay.call(GOOD).body(b"x").succeeded() == b"x"
            await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
            assert (it.cartridge()["crashes"], it.cartridge()["pause"]) == (1, 0)


async def test_pause_of_crashes_grows() -> None:
    """H51."""
    async with bench(record("Dies"), settings=msgspec.structs.replace(QUICK, first_pause=0.02)) as it:
        for _ in range(5):
            await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
            pause = it.cartridge()["pause"]
            await it.relay.until(lambda: it.cartridge()["pause"] == 0)
        assert 0.1 < pause <= 0.16


@LINKS
@pytest.mark.parametrize("force_kill", [False, True])
async def test_kill_for_a_cancel_is_no_crash(link: str, force_kill: bool) -> None:
    """H51."""
    async with bench(record("IgnoresCancel"), link=link) as it:
        for _ in range(3):
            call = it.relay.call(CAP).body(b"x")
            await it.relay.until(lambda: it.cartridge()["active"] == 1)
            call.cancel(force_kill=force_kill)
            await call.failed("CANCELLED")
        assert (it.cartridge()["crashes"], it.cartridge()["pause"]) == (0, 0)


GROUPED_HOST = """
import os, pathlib, sys, trio
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from tests.host.driver import QUICK, bench, record
from tests.misbehave import CAP, GOOD

async def main():
    async with bench(record("EatsMemory")) as it:
        print(await it.relay.call(CAP).body(b"x").failed("OOM_KILLED"))
        print(await it.relay.call(GOOD).body(b"alive").succeeded())

trio.run(main)
"""


def test_a_real_kill_for_memory_is_told_to_the_requester(small_group: Path) -> None:
    """H33: a host in a control group of 64 MiB, whose cartridge asks for more."""
    command = [sys.executable, "-c", GROUPED_HOST, str(small_group)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    told, alive_still = done.stdout.splitlines()
    assert "was killed by SIGKILL because memory ran out: give it more memory" in told, done.stderr
    assert alive_still == "b'alive'"
