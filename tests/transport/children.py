"""Small real processes for the tests of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from capdag.transport.process import ChildProcess
from tests.leaks import alive

ROOT = Path(__file__).parents[2]

PYTHON = [sys.executable, "-I", "-S", "-c"]
"""A Python that starts in some 10 ms."""

READY = "import os, sys, signal, time\nprint('ready', flush=True)\n"

OBEYS_EOF = READY + "sys.stdin.read()"
IGNORES_EOF = READY + "time.sleep(60)"
IGNORES_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + IGNORES_EOF
STOPS_ITSELF = READY + "os.kill(os.getpid(), signal.SIGSTOP)"
FLOODS_STDERR = READY + "while True: os.write(2, b'flood ' * 1000 + b'\\n')"
LEAVES_GRANDCHILD = """
import os, sys, time
grandchild = os.fork()
if grandchild == 0:
    if {own_session}: os.setsid()
    time.sleep(60)
    os._exit(0)
time.sleep(0.02)
print(grandchild, flush=True)
sys.stdin.read()
"""


async def read_line(child: ChildProcess) -> str:
    """Read the first line of a child's stdout."""
    line = b""
    with trio.fail_after(10):
        while not line.endswith(b"\n"):
            await trio.lowlevel.wait_readable(child.stdout_fd)
            data = os.read(child.stdout_fd, 100)
            if not data:
                raise AssertionError(f"stdout ended after {line!r}")
            line += data
    return line.decode().strip()


async def wait_gone(*pids: int, within: float = 5) -> float:
    """Wait until none of the processes lives, and return how many seconds that took; fail after `within`."""
    start = trio.current_time()
    while left := [pid for pid in pids if alive(pid)]:
        assert trio.current_time() - start < within, f"still alive: {left}"
        await trio.sleep(0.005)
    return trio.current_time() - start


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process by other means than the subject of the tests, in a session of its own."""
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)


@asynccontextmanager
async def running_host(**order: object) -> AsyncIterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Run `host_script` until the end of the block, which kills it; give the process and what it said."""
    with start([sys.executable, "-m", "tests.transport.host_script", json.dumps(order)]) as host:
        assert host.stdout is not None
        try:
            yield host, json.loads(await trio.to_thread.run_sync(host.stdout.readline))
        finally:
            host.kill()
