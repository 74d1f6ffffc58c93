"""The public `capdag` package's host as a black box: `router_peer.py KIND SOCKET_FD PYTHON CHILDREN WINDOW MAX_CHUNK`.

Runs in that package's own environment (`.venv-peer`), on its public API alone. `shipped` takes it as it is. `repaired`
takes away its wait: a short wait on one queue ends as soon as something lies in another; full queues are waited for.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from capdag.bifaci.host_runtime import CartridgeHost  # type: ignore[import-not-found]

POLL = 0.1
"""Seconds: a wait up to this is a poll."""


class Repair:
    """Makes every queue's poll end when anything arrives anywhere, and every put wait for room."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: weakref.WeakSet[Any] = weakref.WeakSet()
        self._init, self._put, self._get = queue.Queue.__init__, queue.Queue.put, queue.Queue.get

    def apply(self) -> None:
        """Change the standard library's queues in this process."""
        repair = self

        def init(this: Any, maxsize: int = 0) -> None:
            repair._init(this, maxsize)
            repair._queues.add(this)

        def put(this: Any, item: Any, *_: object, **__: object) -> None:
            repair._put(this, item)
            with repair._changed:
                repair._changed.notify_all()

        def get(this: Any, block: bool = True, timeout: float | None = None) -> Any:
            if block and timeout is not None and timeout <= POLL:
                repair._await(time.monotonic() + timeout)
                block, timeout = False, None
            elif block:
                repair._queues.discard(this)  # somebody else waits for what comes here
            return repair._get(this, block, timeout)

        queue.Queue.__init__, queue.Queue.put, queue.Queue.get = init, put, get  # type: ignore[assignment, method-assign]

    def _await(self, until: float) -> None:
        with self._changed:
            while all(other.empty() for other in self._queues):
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return


def main() -> None:
    """Run the host with its cartridges until the socket ends."""
    kind, sock, python, children, *limits = sys.argv[1:]
    if kind == "repaired":
        Repair().apply()
    host = CartridgeHost()
    root = Path(__file__).parents[1]
    site = subprocess.check_output([python, "-c", "import site; print(*site.getsitepackages(), sep=':')"], text=True)
    environment = {**os.environ, "PYTHONPATH": f"{root}:{site.strip()}"}
    for number in range(int(children)):
        command = [python, "-m", "benchmarks.lean", str(number), *limits]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=environment)
        host.attach_cartridge(child.stdout, child.stdin)
    relay = socket.socket(fileno=int(sock))
    host.run(relay.makefile("rb"), relay.makefile("wb"))


main()
