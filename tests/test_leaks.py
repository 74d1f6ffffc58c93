"""The leak check itself: a check that cannot fail would guard nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import trio

from tests import leaks
from tests.leaks import alive, assert_no_leaks

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def _short_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SETTLE", 0.05)


def test_a_clean_block_passes() -> None:
    with assert_no_leaks():
        os.close(os.open(os.devnull, os.O_RDONLY))
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)


def test_a_descriptor_left_open_is_named() -> None:
    check = assert_no_leaks()
    check.__enter__()
    fd = os.open(os.devnull, os.O_RDONLY)
    with pytest.raises(AssertionError, match=f"descriptor {fd}: /dev/null"):
        check.__exit__(None, None, None)
    os.close(fd)


def test_a_living_child_is_named_and_killed() -> None:
    check = assert_no_leaks()
    check.__enter__()
    child = subprocess.Popen(SLEEP)
    with pytest.raises(AssertionError, match=f"process {child.pid}: .*time.sleep"):
        check.__exit__(None, None, None)
    assert child.wait(5) == -9


def test_a_zombie_is_a_leak() -> None:
    check = assert_no_leaks()
    check.__enter__()
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(AssertionError, match=f"process {child.pid}: zombie"):
        check.__exit__(None, None, None)
    assert child.wait(5) == 0


def test_a_detached_grandchild_is_a_leak() -> None:
    check = assert_no_leaks()
    check.__enter__()
    script = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        child.wait(5)
    with pytest.raises(AssertionError, match=f"process {grandchild}: "):
        check.__exit__(None, None, None)
    deadline = time.monotonic() + 5
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not alive(grandchild)


async def test_a_task_still_running_is_named() -> None:
    async with trio.open_nursery() as nursery:
        check = assert_no_leaks()
        check.__enter__()
        nursery.start_soon(trio.sleep_forever, name="forgotten")
        with pytest.raises(AssertionError, match="task forgotten"):
            check.__exit__(None, None, None)
        nursery.cancel_scope.cancel()


def test_an_error_of_the_block_is_not_masked() -> None:
    def fail_holding(fd: int) -> None:
        raise ValueError(fd)

    with pytest.raises(ValueError, match=r"^\d+$") as raised, assert_no_leaks():
        fail_holding(os.open(os.devnull, os.O_RDONLY))
    os.close(raised.value.args[0])
