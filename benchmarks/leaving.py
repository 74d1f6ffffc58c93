"""How soon an engine is idle after its client has left, in every phase, behind a real `capdag serve`.

Needs the model that `capdag models fetch` brings. The CPU clock of the process is read, not the wall's: idle means that
it has used less than 2 ms of CPU in 40 ms.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from .rounds import ROUNDS

MODEL = "smollm2-135m-instruct"
_WORDS = "river stone cloud lamp paper green seven window north bread "


class Server:
    """A `capdag serve` on a free port, and its one cartridge process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "capdag", "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None
        self._out: IO[bytes] = self._process.stdout
        while (found := re.search(rb"http://127\.0\.0\.1:(\d+)", self._out.readline())) is None:
            pass
        self.port = int(found[1])

    def post(self, **body: object) -> socket.socket:
        """Send a chat request and return its connection."""
        data = json.dumps({"model": MODEL, "temperature": 0, **body}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}"
        )
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.sendall(head.encode() + b"\r\n\r\n" + data)
        return sock

    def engine_pid(self) -> int:
        """Return the process that runs the model."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if b"llama_cpp" in command and parent == self._process.pid:
                return int(folder.name)
        raise RuntimeError("the model's process is not running")

    def close(self) -> None:
        """Stop the server in order."""
        self._process.send_signal(signal.SIGINT)
        self._out.read()
        self._process.wait()
        self._out.close()


def _cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _time_to_idle(pid: int, left_at: float) -> float:
    """Return milliseconds from `left_at` to the beginning of the first quiet 40 ms."""
    while True:
        start, before = time.perf_counter(), _cpu_seconds(pid)
        time.sleep(0.04)
        if _cpu_seconds(pid) - before < 0.002:
            return max(0.0, start - left_at) * 1000


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _in_prompt(server: Server, number: int) -> socket.socket:
    sock = server.post(stream=True, max_tokens=5, messages=_messages(f"{number} " + _WORDS * 130))
    time.sleep(0.6)
    return sock


def _in_stream(server: Server, number: int) -> socket.socket:
    sock = server.post(stream=True, max_tokens=1000, messages=_messages(f"Count upwards from {number}."))
    while sock.recv(4096).count(b"data:") == 0:
        pass
    time.sleep(0.3)
    return sock


def _not_streamed(server: Server, number: int) -> socket.socket:
    sock = server.post(max_tokens=1000, messages=_messages(f"Tell a story of {number} cats."))
    time.sleep(1.0)
    return sock


PHASES: dict[str, Callable[[Server, int], socket.socket]] = {
    "in the prompt, before any token": _in_prompt,
    "in mid-stream": _in_stream,
    "in a request that is not streamed": _not_streamed,
}


def main() -> None:
    """Print, for each phase, the time from the close of the socket to an idle engine."""
    server = Server()
    try:
        with server.post(max_tokens=1, messages=_messages("hi")) as sock:
            sock.recv(65_536)
        pid = server.engine_pid()
        print("\nfrom the client's close to an idle engine  (ms; SmolLM2-135M on the CPU)")
        for name, begin in PHASES.items():
            times = []
            for number in range(ROUNDS):
                sock = begin(server, number)
                sock.close()
                times.append(_time_to_idle(pid, time.perf_counter()))
            times.sort()
            print(f"  {name:<36} {times[len(times) // 2]:>8.0f} [{times[0]:.0f}..{times[-1]:.0f}]")
    finally:
        server.close()
