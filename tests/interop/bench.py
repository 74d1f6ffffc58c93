"""One role: a switch, two hosts on unix sockets and three cartridges, each ours or the public package's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import trio

from cartridges.echo import ECHO
from tests.interop.engines import HERE, PEER_PYTHON, Engine, Outcome, our_engine, peer_engine
from tests.interop.vocabulary import CAPACITY_VARIABLE, NAME_VARIABLE, cap
from tests.leaks import alive

ROOT = HERE.parents[1]
START_TIMEOUT = 30.0
REPUBLISH = 1.0
"""Seconds between two advertisements of a host of ours. The package takes its time over each."""
LEAVE_TIMEOUT = 10.0
"""Seconds that what a dead host had started has for noticing it. The public package's cartridges give a handler 5."""


class Kind(Enum):
    """Whose."""

    OURS = "ours"
    PEER = "the public package's"

    @property
    def other(self) -> Kind:
        """The other kind."""
        return Kind.PEER if self is Kind.OURS else Kind.OURS


class Role(NamedTuple):
    """Who plays what. `cartridge` is the kind of `left`, which is under test, and of `far`; `right` is the other."""

    letter: str
    title: str
    switch: Kind
    host: Kind
    cartridge: Kind


_ROLES = (
    Role("a", "its cartridges under our host", Kind.OURS, Kind.OURS, Kind.PEER),
    Role("b", "our cartridges under its host", Kind.PEER, Kind.PEER, Kind.OURS),
    Role("c", "our host under its switch", Kind.PEER, Kind.OURS, Kind.OURS),
    Role("d", "its host under our switch", Kind.OURS, Kind.PEER, Kind.PEER),
)
ROLES = {role.letter: role for role in _ROLES}

HOSTS = {"near": ("left", "right"), "far": ("far",)}
"""The cartridges of each host; `near` has the shipped echo cartridge besides. A `far` of ours has async handlers."""

_OURS = f"{sys.executable} -m capdag.cartridge"
_PEER_CARTRIDGE = f"{PEER_PYTHON} -E {HERE / 'peer_cartridge.py'}"

_ENGINES: dict[Kind, Callable[[Path], AbstractAsyncContextManager[Engine]]] = {
    Kind.OURS: our_engine,
    Kind.PEER: peer_engine,
}


class Bench:
    """A running role. Made by `open_bench`. `stuck` are the caps of requests that a fault keeps from ending."""

    def __init__(self, role: Role, engine: Engine, folder: Path, nursery: trio.Nursery, capacity: int) -> None:
        self.role = role
        self._capacity = capacity
        self.engine = engine
        self._folder = folder
        self._nursery = nursery
        self._hosts: dict[str, trio.Process] = {}
        self._orphans: list[int] = []
        self.stuck: list[str] = []

    def kind(self, cartridge: str) -> Kind:
        """Return whose a cartridge is."""
        return self.role.cartridge.other if cartridge == "right" else self.role.cartridge

    async def start_host(self, name: str) -> None:
        """Start a host with its cartridges, and return when the switch routes to all of them."""
        sock = self._folder / f"{name}.sock"
        sock.unlink(missing_ok=True)
        with trio.fail_after(START_TIMEOUT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.engine.accept, name)
                self._hosts[name] = await self._nursery.start(partial(self._run_host, self._host_command(name, sock)))
            served = [cap("echo", cartridge) for cartridge in HOSTS[name]]
            for text in [*served, ECHO] if name == "near" else served:
                await until(partial(self.engine.serves, text))

    async def _run_host(self, command: list[str], *, task_status: trio.TaskStatus[trio.Process]) -> None:
        # Its stderr is ours: what a host says is shown when a test fails.
        await trio.run_process(
            command,
            cwd=ROOT,
            env={**os.environ, "XDG_RUNTIME_DIR": str(self._folder)},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            task_status=task_status,
        )

    def _host_command(self, name: str, sock: Path) -> list[str]:
        programs = self._programs(name)
        if self.role.host is Kind.PEER:
            return [str(PEER_PYTHON), "-E", str(HERE / "peer_host.py"), str(sock), *programs]
        words = [word for program in programs for word in ("--cartridge", program)]
        return [sys.executable, "-m", "capdag", "host", "--connect", f"unix:{sock}", *self._host_options(), *words]

    def _host_options(self) -> list[str]:
        """Return the options of a host of ours: no models, and quick to end a call and to tell."""
        models, config = self._folder / "models", self._folder / "host.toml"
        models.mkdir(exist_ok=True)
        config.write_text(f"[host]\ncall_grace = 0.2\nrepublish_interval = {REPUBLISH}\n")
        return ["--models", str(models), "--config", str(config)]

    def _programs(self, host: str) -> list[str]:
        """Return the programs of a host's cartridges. Hosts of ours have the shipped echo cartridge of themselves."""
        commands = {cartridge: self._command(cartridge) for cartridge in HOSTS[host]}
        if host == "near" and self.role.host is Kind.PEER:
            commands["shipped"] = f"{_OURS} cartridges.echo.main"
        return [str(self._program(name, command)) for name, command in commands.items()]

    def _command(self, cartridge: str) -> str:
        if self.kind(cartridge) is Kind.PEER:
            return _PEER_CARTRIDGE
        return f"{_OURS} tests.interop.{'our_async_cartridge' if cartridge == 'far' else 'our_cartridge'}"

    def _program(self, cartridge: str, command: str) -> Path:
        program = self._folder / cartridge
        variables = f"{NAME_VARIABLE}={cartridge} {CAPACITY_VARIABLE}={self._capacity} PYTHONPATH={ROOT}"
        program.write_text(f'#!/bin/sh\n{variables} exec {command} "$@"\n')
        program.chmod(0o700)
        return program

    async def kill_host(self, name: str) -> None:
        """Kill a host, and return when nothing of ours that it had started is left."""
        process = self._hosts[name]
        started = psutil.Process(process.pid).children(recursive=True)
        self._orphans += [child.pid for child in started]
        # The package's cartridges finish what they are at, for 5 s; a guardian of ours ends them at once.
        late = [child.pid for child in started if self.role.host is Kind.PEER and str(PEER_PYTHON) in child.cmdline()]
        process.kill()
        await until_gone([child.pid for child in started if child.pid not in late])

    async def close(self) -> None:
        """End the hosts, now that the switch has gone: the public package's end with it."""
        if self.role.host is Kind.OURS:
            for process in self._hosts.values():
                process.terminate()
        try:
            await until_gone(self._orphans)
        finally:
            for pid in filter(alive, self._orphans):
                psutil.Process(pid).kill()

    async def call(self, function: str, cartridge: str, argument: bytes = b"", **words: Any) -> Outcome:
        """Call a function of a cartridge."""
        return await self.engine.call(cap(function, cartridge), argument, **words)

    async def until_live(self, wanted: str) -> None:
        """Wait until the switch holds a request of a cap."""
        await until(partial(self._holds, wanted))

    async def _holds(self, wanted: str) -> bool:
        return wanted in await self.engine.live()

    async def settled(self) -> None:
        """Wait until the switch holds no request but those that are `stuck`."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        return await self.engine.live() == self.stuck

    async def hosts_settled(self) -> None:
        """Wait until hosts of ours say that they hold nothing, which they do every REPUBLISH seconds."""
        await until(self._are_hosts_settled)

    async def _are_hosts_settled(self) -> bool:
        return not await self.engine.held()


async def until(ready: Callable[[], Any]) -> None:
    """Ask until the answer is yes."""
    with trio.fail_after(START_TIMEOUT):
        while not await ready():  # noqa: ASYNC110
            await trio.sleep(0.02)


async def until_gone(pids: Sequence[int]) -> None:
    """Wait for the end of processes that are not our children."""
    with trio.fail_after(LEAVE_TIMEOUT):
        while any(map(alive, pids)):  # noqa: ASYNC110
            await trio.sleep(0.02)


@asynccontextmanager
async def open_bench(name: str, folder: Path, capacity: int = 0) -> AsyncIterator[Bench]:
    """Run a role by its letter. `capacity` bounds the requests that a cartridge takes at a time."""
    role = ROLES[name]
    async with trio.open_nursery() as nursery:
        async with _ENGINES[role.switch](folder) as engine:
            bench = Bench(role, engine, folder, nursery, capacity)
            async with trio.open_nursery() as starting:
                for host in HOSTS:
                    starting.start_soon(bench.start_host, host)
            yield bench
            await bench.hosts_settled()
        await bench.close()
        nursery.cancel_scope.deadline = trio.current_time() + LEAVE_TIMEOUT
