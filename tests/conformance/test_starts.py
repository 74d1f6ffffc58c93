"""Commands that are no cartridge: a clear message, in time, and nothing left (the leak check is every test's)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from capdag.conformance import CASES, Report, Settings, Verdict, check
from capdag.transport import SpawnError
from tests.leaks import alive
from tests.misbehave import command, environment


def checked(misdeed: str, only: list[str], *, exit_timeout: float = 3.0, start_timeout: float = 30.0) -> Report:
    settings = Settings(
        env=environment(), settle=0.02, timeout=2.0, exit_timeout=exit_timeout, start_timeout=start_timeout
    )
    return check(command(misdeed), settings, only=only)


def test_no_such_program() -> None:
    with pytest.raises(SpawnError, match="there is no program no-such-cartridge; install it"):
        check(["no-such-cartridge"])


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    script = tmp_path / "cartridge.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(SpawnError, match=r"chmod \+x"):
        check([str(script)])


def test_a_program_that_exits_at_once() -> None:
    report = checked("ExitBeforeHello", [])
    assert "exited with status 3" in report["hello"].seen
    assert "no such weights: model.gguf" in report["hello"].seen
    assert [result.case.id for result in report.of(Verdict.FAIL)] == ["hello"]
    assert {result.seen for result in report.of(Verdict.SKIP)} == {
        "the cartridge breaks the rule of the case hello first"
    }


def test_a_program_that_never_says_hello() -> None:
    report = checked("Silent", [], start_timeout=0.5)
    assert report["hello"].seen == "HELLO did not come within 0.5 s"
    assert [result.case.id for result in report.of(Verdict.FAIL)] == ["hello"]
    assert len(report.of(Verdict.SKIP)) == len(CASES) - 1


def test_a_program_that_prints() -> None:
    report = checked("PrintsAtStart", ["hello", "stdout"])
    assert "Loading model" in report["stdout"].seen
    assert report["stdout"].verdict is Verdict.FAIL


def test_a_print_among_frames() -> None:
    report = checked("Prints", ["identity", "stdout", "chunk-size"])
    assert "prog" in report["stdout"].seen
    assert [result.case.id for result in report.of(Verdict.FAIL)] == ["stdout"]


def test_a_program_that_hangs_is_killed_with_what_it_started() -> None:
    report = checked("IgnoresSigterm", ["sigterm", "eof"], exit_timeout=0.3)
    assert [result.seen for result in report.of(Verdict.FAIL)] == [
        "after the end of stdin, the process was still there after 0.3 s",
        "after SIGTERM, the process was still there after 0.3 s",
    ]


def test_a_grandchild_that_left_the_group_is_found_and_killed(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    child = f"import os,time; os.setsid(); open({str(noted)!r},'w').write(str(os.getpid())); time.sleep(60)"
    script = (
        "import subprocess,sys,os\n"
        f"subprocess.Popen([sys.executable,'-S','-c',{child!r}],stdin=-3,stdout=-3,stderr=-3)\n"
        f"while not os.path.exists({str(noted)!r}): pass\n"
        f"os.execv(sys.executable,{command('Nothing')!r})\n"
    )
    report = check([sys.executable, "-S", "-c", script], Settings(env=environment()), only=["left-behind"])
    pid = int(noted.read_text())
    assert report["left-behind"].seen == f"processes {pid} are still there"
    assert not alive(pid)


def test_a_flood_on_stderr_stops_nobody() -> None:
    report = checked("FloodsStderr", ["answer"])
    assert report.passed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_check_and_the_cartridge(number: signal.Signals) -> None:
    started = [sys.executable, "-m", "capdag", "check", *command("Silent")]
    env = {**os.environ, **environment()}
    checking = subprocess.Popen(started, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not any(_is_silent(child) for child in psutil.Process(checking.pid).children()):
        time.sleep(0.02)
    checking.send_signal(number)
    _, stderr = checking.communicate(timeout=20)
    assert (checking.returncode, stderr) == (128 + number, "Error: interrupted; the cartridge was ended\n")


def _is_silent(child: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has just ended
        return child.cmdline() == command("Silent")
    return False
