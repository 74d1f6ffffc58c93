"""`capdag serve --split`: the host and the gateway as two processes that are started again when they are killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from capdag.config import Config
from capdag.errors import ConfigError
from capdag.transport.process import child_environment

from ._failure import FAILED, HalfEndedError
from ._folders import HAS_UNIX_SOCKETS
from ._http import shutdown_limit
from ._run import Run, open_run
from ._signals import run_until_signal

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before a half that was killed is started again; the pause doubles with each time."""

KILL_AFTER = 2.0
"""Seconds that a half has for ending when it must not take the time for an orderly end."""

_log = logging.getLogger(__name__)


def run_split(config: Config, host: Sequence[str], gateway: Sequence[str]) -> None:
    """Run `capdag host` and `capdag gateway` with these arguments, joined by a socket, until Ctrl-C or SIGTERM.

    Raises HalfEndedError with the exit code of a half that ended by itself: it has said why; ConfigError on Windows.
    """
    if not HAS_UNIX_SOCKETS:
        raise ConfigError("--split joins its processes by a unix socket, which Windows does not have: leave it out")
    trio.run(run_until_signal, partial(_split, config, host, gateway), shutdown_limit(config))


async def _split(config: Config, host: Sequence[str], gateway: Sequence[str], stop: trio.Event) -> None:
    async with open_run() as run:
        endpoint = f"unix:{run.folder / f'split-{os.getpid()}.socket'}"
        async with trio.open_nursery() as nursery:
            host_half = Half("host", [*host, "--listen", endpoint], run)
            hosts = ",".join([endpoint, *config.gateway.links.hosts])
            accept = [word for address in config.gateway.links.accept for word in ("--accept", address)]
            gateway_half = Half("gateway", [*gateway, "--hosts", hosts, *accept], run)
            for half in (host_half, gateway_half):
                nursery.start_soon(half.keep_running)
            await stop.wait()
            for half in (gateway_half, host_half):
                await half.stop()
            nursery.cancel_scope.cancel()


class Half:
    """One of the two processes."""

    def __init__(self, name: str, arguments: Sequence[str], run: Run) -> None:
        self._name = name
        self._command = [sys.executable, "-m", "capdag", name, *arguments]
        self._guardian = run.guardian
        self._process: trio.Process | None = None
        self._stopping = trio.Event()
        self._ended = trio.Event()

    async def keep_running(self) -> None:
        """Run the process, and again whenever it is killed, until `stop`. Raises HalfEndedError if it ends itself."""
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            code = await self._run_once()
            if self._stopping.is_set():
                break
            if code >= 0:
                raise HalfEndedError(f"capdag {self._name} has ended by itself, with exit code {code}", code or FAILED)
            name = signal.Signals(-code).name
            _log.error("capdag %s was ended by %s; it is started again in %g s", self._name, name, pause)
            with trio.move_on_after(pause):
                await self._stopping.wait()
            pause = min(2 * pause, LONGEST_PAUSE)
        self._ended.set()

    async def _run_once(self) -> int:
        """Run the process to its end; returns its exit code, negative for a signal."""
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(self._run_process)
            self._process = process
            self._guardian.add_group(process.pid)
        self._guardian.remove_group(process.pid)
        self._process = None
        assert process.returncode is not None
        return process.returncode

    async def _run_process(self, *, task_status: trio.TaskStatus[trio.Process]) -> None:
        # A session of its own: Ctrl-C reaches this process alone, which then ends the halves in their order.
        own_session: dict[str, Any] = {"start_new_session": True}  # which types for Windows do not know
        await trio.run_process(
            self._command,
            stdin=subprocess.DEVNULL,
            check=False,
            deliver_cancel=_end,
            env=child_environment({}, self._guardian.run_id),
            task_status=task_status,
            **own_session,
        )

    async def stop(self) -> None:
        """Let the process shut down in order, and wait for its end."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        await self._ended.wait()


async def _end(process: trio.Process) -> None:
    """End a process whose run was cancelled: SIGTERM, which hurries a shutdown that is under way, then SIGKILL."""
    process.terminate()
    await trio.sleep(KILL_AFTER)
    process.kill()
