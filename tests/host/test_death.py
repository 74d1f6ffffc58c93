"""However a process ends: what it held gets one terminal, the next request a new process, nothing is left."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from capdag.errors import AttributionClass
from capdag.host.deaths import ProcessEnd
from capdag.wire import Failure, FrameType, failure_of
from tests.host.driver import LINKS, Bench, bench, record
from tests.leaks import alive
from tests.misbehave import CAP, GOOD


async def test_next_request_starts_a_new_process_after_a_kill() -> None:
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
        ("ClosesStdout", ["it closed its stdout, stayed, and was ended by the host"]),
        ("LeavesGrandchild", ["killed by SIGKILL", "a grandchild remains"]),
    ],
)
async def test_death_in_mid_request_is_told_with_its_cause(link: str, misdeed: str, told: list[str]) -> None:
    async with bench(record(misdeed), link=link) as it:
        call = it.relay.call(CAP).body(b"piece")
        message = await call.failed("CARTRIDGE_DIED")
        assert all(part in message for part in ["cartridge 'cart'", *told]), message
        (terminal,) = call.terminals
        flow = [view.seq for view in call.frames if view.type is not FrameType.CREDIT]
        assert flow == list(range(len(flow)))
        assert failure_of(terminal.meta).attribution is AttributionClass.ENVIRONMENT
        assert await it.relay.call(GOOD).body(b"y").succeeded() == b"y"


async def test_end_that_lay_in_the_pipe_counts() -> None:
    async with bench(record("EndsAndLeaves")) as it:
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        await it.relay.until(lambda: it.state() == "dead")
        assert it.cartridge()["last_exit"] == "exited with status 0"


async def test_death_is_in_the_log_at_error_level(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(record("Dies")) as it:
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
    (error,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    assert error.startswith("CARTRIDGE_DIED: cartridge 'cart' was killed by SIGKILL")
    assert error.endswith("(1 requests ended by it)")


@LINKS
async def test_flooded_stderr_blocks_nobody(link: str) -> None:
    async with bench(record("FloodsStderr"), link=link) as it:
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"


@LINKS
async def test_caller_that_dies_gives_its_call_up(link: str) -> None:
    """Its own request gets the death; the callee an aborted body and a CANCEL as collateral."""
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
    tail = "; the last lines of its stderr:\na\nb"
    kinds = {
        end(): ("CARTRIDGE_DIED", "environment", f"cartridge 'c' was killed by SIGKILL{tail}"),
        end(oom_killed=True): (
            "OOM_KILLED",
            "resource",
            f"cartridge 'c' was killed by SIGKILL: give it more memory, or run less beside it{tail}",
        ),
        end(link="the stream ended inside a frame"): (
            "CARTRIDGE_DIED",
            "environment",
            f"cartridge 'c' was killed by SIGKILL (the stream ended inside a frame){tail}",
        ),
        end(violation="bad frame"): (
            "PROTOCOL_VIOLATION",
            "internal",
            f"cartridge 'c' broke the protocol: bad frame; it was killed by SIGKILL{tail}",
        ),
        end(killed_for=Failure("CARTRIDGE_UNHEALTHY", AttributionClass.ENVIRONMENT, "no beat")): (
            "CARTRIDGE_UNHEALTHY",
            "environment",
            f"no beat; it was killed by SIGKILL{tail}",
        ),
    }
    for how, told in kinds.items():
        failure = how.death()
        assert (failure.code, failure.attribution.value, failure.message) == told


async def test_grandchild_is_gone_with_the_process() -> None:
    async with bench(record("LeavesGrandchild"), guarded=True) as it:
        await it.relay.call(CAP).body(b"x").failed("CARTRIDGE_DIED")
        await it.relay.until(lambda: not alive(_grandchild_of(it)))


def _grandchild_of(it: Bench) -> int:
    return int(str(it.cartridge()["trouble"]).split("a grandchild remains: ")[1].split()[0])
