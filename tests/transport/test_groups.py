"""A process ends with what it has started, on each system by its own means."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from capdag.transport._exits import wait_for_exit
from capdag.transport._groups import KILL, start_in_group
from tests.cli.servers import eventually
from tests.leaks import alive

TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    command = [sys.executable, str(script)]
    if sys.platform == "win32":
        command = ["cmd", "/c", *command]
    read, write = os.pipe()
    with os.fdopen(read, "rb") as told, open(os.devnull, "r+b") as null:
        with os.fdopen(write, "wb") as out:
            process, group = start_in_group(command, stdin=null, stdout=out, stderr=null, env=os.environ, cwd=None)
        grandchild = int(told.readline())
        group.send(KILL)
        process.wait()
        group.close()
        assert told.read() == b""  # nobody holds the other end any more
    eventually(lambda: not alive(grandchild), 5, "a killed process closes what it holds before it is gone")


@pytest.mark.skipif(sys.platform in ("linux", "win32"), reason="for systems with kqueue: not run here")
async def test_an_exit_is_told_by_kqueue() -> None:
    with trio.fail_after(10):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])  # noqa: ASYNC220
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_exit, process)
            nursery.start_soon(wait_for_exit, process)
        assert process.wait() == 0


@pytest.mark.skipif(sys.platform != "win32", reason="for Windows: not run here")
def test_a_job_is_killed_with_its_last_handle(tmp_path: Path) -> None:
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    with open(os.devnull, "r+b") as null:
        command = ["cmd", "/c", sys.executable, str(script)]
        process, group = start_in_group(command, stdin=null, stdout=null, stderr=null, env=os.environ, cwd=None)
        group.close()
        assert process.wait(10) != 0
