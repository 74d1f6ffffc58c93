"""The process under test, and how it is started."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from logging import getLogger
from typing import NamedTuple, Protocol

import trio

from capdag.errors import RemoteProtocolError
from capdag.transport import (
    ChildLink,
    ChildProcess,
    ExitStatus,
    Guardian,
    Link,
    Receiver,
    SpawnError,
    StderrTail,
    carriers,
    child_environment,
    child_link,
    drain_stderr,
    kill_carriers,
    spawn,
)

from ._settings import Settings

_MARK = "CAPDAG_CHECK_ID"
"""Names one start in the environment, by which processes that a cartridge leaves behind are found."""

_CAN_CHECK = sys.platform != "win32"

_MOST_SAID = 16 << 20
_READ_SIZE = 65_536

_log = getLogger(__name__)


class Target(Protocol):
    """A started cartridge: its link, and what can be done to its process."""

    @property
    def link(self) -> Link:
        """The frames to it and from it."""

    @property
    def violation(self) -> RemoteProtocolError | None:
        """Why its stdout cannot be read any further, if that is so."""

    def send_raw(self, data: bytes) -> None:
        """Write bytes that need not be frames."""

    def close_stdin(self) -> None:
        """End its stdin. Its stdout is still read."""

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def exit_status(self) -> ExitStatus | None:
        """Return how the process ended, None while it lives."""

    async def wait_exit(self) -> ExitStatus:
        """Wait for the end of the process."""

    def left_behind(self) -> Sequence[int]:
        """Return the ids of processes that it started and that live."""

    def stderr(self) -> str:
        """Return the end of what it has written to stderr."""


Launcher = Callable[[Receiver], AbstractAsyncContextManager[Target]]
"""Starts the cartridge; what it says goes to the receiver. At the end of the block nothing of it is left."""


class Said(NamedTuple):
    """What a cartridge says to a person. `status` is None if it had to be killed."""

    status: ExitStatus | None
    stdout: bytes
    stderr: str


class Starter(Protocol):
    """How a cartridge is started."""

    def start(self, receiver: Receiver) -> AbstractAsyncContextManager[Target]:
        """Start it, as a host does. Raises SpawnError if there is no such program."""

    async def say(self, argument: str) -> Said:
        """Start it with an argument, as a person does, and wait for its end."""


class _Started:
    """A `Target` that is a process."""

    def __init__(self, child: ChildProcess, link: ChildLink, tail: StderrTail, mark: str) -> None:
        self.link = link
        self._child = child
        self._tail = tail
        self._mark = mark

    @property
    def violation(self) -> RemoteProtocolError | None:
        return self.link.violation

    def send_raw(self, data: bytes) -> None:
        try:
            os.write(self._child.stdin_fd, data)
        except OSError as error:
            _log.debug("the cartridge takes no more bytes: %s", error)

    def close_stdin(self) -> None:
        # The number stays ours, as the link expects; what it names is no longer the pipe.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._child.stdin_fd, inheritable=False)
        os.close(null)

    def terminate(self) -> None:
        self._child.kill_group(signal.SIGTERM)

    def exit_status(self) -> ExitStatus | None:
        return self._child.exit_status()

    async def wait_exit(self) -> ExitStatus:
        status = await self._child.wait_exit()
        await self.link.read_rest()
        return status

    def left_behind(self) -> Sequence[int]:
        return [pid for pid in carriers(_MARK, self._mark) if pid != self._child.pid]

    def stderr(self) -> str:
        return self._tail.text()


class Command:
    """The `Starter` of a command line."""

    def __init__(self, command: Sequence[str], settings: Settings, guardian: Guardian) -> None:
        self._command = list(command)
        self._settings = settings
        self._guardian = guardian

    def _spawn(self, mark: str, *arguments: str) -> ChildProcess:
        if not _CAN_CHECK:
            raise SpawnError("cartridges cannot be checked on Windows, where pipes are others: do it on Linux or macOS")
        own = {"CAPDAG_CONFIG": os.environ.get("CAPDAG_CONFIG", "{}"), **self._settings.env, _MARK: mark}
        env = child_environment(own, self._guardian.run_id)
        return spawn([*self._command, *arguments], env=env, cwd=self._settings.cwd, guardian=self._guardian)

    @asynccontextmanager
    async def start(self, receiver: Receiver) -> AsyncIterator[Target]:
        """Start it as a host does."""
        mark = uuid.uuid4().hex
        child = self._spawn(mark)
        tail = StderrTail()
        # The descriptors are closed below, when the link has ended: see ChildProcess.
        link = child_link(self._command[0], child, close_stdin=lambda: None)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run, receiver)
                nursery.start_soon(_drain, child, tail)
                yield _Started(child, link, tail, mark)
                nursery.cancel_scope.cancel()
        finally:
            await _remove(child, mark)

    async def say(self, argument: str) -> Said:
        """Start it with an argument, its stdin at its end."""
        mark = uuid.uuid4().hex
        child = self._spawn(mark, argument)
        tail = StderrTail()
        said = bytearray()
        try:
            child.close_stdin()
            with trio.move_on_after(self._settings.start_timeout):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_drain, child, tail)
                    await _collect(child.stdout_fd, said)
                    await child.wait_exit()
                    nursery.cancel_scope.cancel()
            return Said(child.exit_status(), bytes(said), tail.text())
        finally:
            await _remove(child, mark)


async def _collect(fd: int, said: bytearray) -> None:
    while len(said) < _MOST_SAID:
        await trio.lowlevel.wait_readable(fd)
        data = os.read(fd, _READ_SIZE)
        if not data:
            return
        said += data


async def _remove(child: ChildProcess, mark: str) -> None:
    await child.stop(0)
    child.close()
    if any(carriers(_MARK, mark)):
        kill_carriers(_MARK, mark)


async def _drain(child: ChildProcess, tail: StderrTail) -> None:
    await drain_stderr(child.stderr_fd, name="stderr", tail=tail, log=_log)
