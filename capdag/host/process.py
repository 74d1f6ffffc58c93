"""One process of a cartridge, from spawn to reap (protocol-spec/host.md, Start and Death).

The process belongs to the task that spawned it from its first moment; however that task ends, the process is killed
and reaped, its pipes are closed and what it held is settled.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Protocol

import trio

from capdag.errors import AttributionClass, LocalProtocolError, ProtocolError
from capdag.transport import FdLink, LinkEnd
from capdag.transport.guardian import Guardian, new_run_id
from capdag.transport.process import ChildProcess, SpawnError, child_environment, spawn
from capdag.transport.stderr import StderrTail, drain_stderr
from capdag.wire import Failure, FrameView

from .cartridge import Cartridge
from .deaths import ProcessEnd
from .exchange import log
from .handshake import Handshake, Step
from .lifecycle import SERVING, Event
from .settings import HostSettings


class Keeper(Protocol):
    """The runtime, as its processes see it. Every call is one routing turn."""

    settings: HostSettings

    def received(self, process: Process, batch: Sequence[FrameView]) -> None:
        """Frames came, of the handshake too: to be given back to `Process.take`."""

    def check(self, cartridge: Cartridge) -> None:
        """Do what is due for a running cartridge."""

    def due(self, cartridge: Cartridge) -> float:
        """Return when `check` is to be called next."""

    def ended(self, process: Process, end: ProcessEnd) -> None:
        """The process is gone, or could not be started."""


class Process:
    """The `Port` of a cartridge with a process, and the receiver of its stdout.

    `refusal`: what was wrong with its answer. `waited`: what did not come, or not in time. `gone` is set after the end.
    """

    def __init__(self, cartridge: Cartridge, keeper: Keeper, guardian: Guardian | None) -> None:
        self.cartridge = cartridge
        self.handshake = Handshake(keeper.settings.limits)
        self.refusal: str | None = None
        self.waited: str | None = None
        self.was_stopped = False
        self.gone = trio.Event()
        self._keeper = keeper
        self._guardian = guardian
        self._child: ChildProcess | None = None
        self._link: FdLink | None = None
        self._link_end: LinkEnd | None = None
        self._link_note = ""
        self._outlived_link = False
        self._tail = StderrTail()
        self._exited = False
        self._killed_for: Failure | None = None
        self._changed = trio.Event()
        self._step_began = 0.0

    # Port

    @property
    def bytes_queued(self) -> int:
        """Bytes that wait for the process to read."""
        return self._link.bytes_queued if self._link is not None else 0

    def send(self, batch: Sequence[FrameView]) -> None:
        """Queue frames for the process. One that cannot take what every process is sent is ended."""
        if self._link is None:
            return
        try:
            self._link.send(batch)
        except LocalProtocolError as error:
            text = f"cartridge {self.cartridge.id!r} agreed on too small frames ({error})"
            self.kill(Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, text))

    def kill(self, failure: Failure) -> None:
        """Kill the process and its group at once; the first reason counts."""
        if self._killed_for is None and self._child is not None:
            self._killed_for = failure
            if self.cartridge.state in SERVING:
                self.cartridge.move(Event.STOP)
            self._child.kill_group(signal.SIGKILL)

    def stop(self) -> None:
        """Have the process ended in order: stdin closed, then signals, within the stop grace."""
        if not self.was_stopped:
            self.was_stopped = True
            if self.cartridge.state in SERVING or self.handshake.step is not Step.DONE:
                self.cartridge.move(Event.STOP)
            self.wake()

    def wake(self) -> None:
        """Have the deadlines looked at again."""
        self._changed.set()

    # Receiver of the link

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Take the frames of one read."""
        self._keeper.received(self, batch)

    def closed(self, reason: str) -> None:
        """The link has ended; `run` of the link says how."""
        self._link_note = reason

    def take(self, batch: Sequence[FrameView]) -> Sequence[FrameView]:
        """Feed the handshake until it is done, and return the frames that follow it."""
        for position, view in enumerate(batch):
            if self.handshake.step is Step.DONE:
                return batch[position:]
            if self.refusal is None:
                self._shake(view)
        return []

    def _shake(self, view: FrameView) -> None:
        assert self._link is not None
        before = self.handshake.step
        try:
            reply = self.handshake.feed(view)
            self._link.set_limits(self.handshake.limits)
            self._link.send(reply)
        except ProtocolError as error:
            self.refusal = str(error)
        if self.handshake.step is not before:
            self._step_began = trio.current_time()
        self.wake()

    # Life

    async def run(self) -> None:
        """Start the process, keep it, and see it gone. Cancellation kills it; nothing of it is left afterwards."""
        cartridge = self.cartridge
        try:
            self._child = self._spawn()
        except SpawnError as error:
            self.waited = str(error)
            self._end(ProcessEnd(cartridge.id, "was never started"))
            return
        self._step_began = trio.current_time()
        cartridge.pid = self._child.pid
        try:
            await self._keep(self._child)
        finally:
            try:
                # Reaped already, unless this task is being cancelled; that cuts the grace short, not the reap.
                await self._child.stop(0)
            finally:
                self._child.close()
                self._end(self._story_of(self._child))

    def _story_of(self, child: ChildProcess) -> ProcessEnd:
        status = child.exit_status()
        words = status.describe() if status is not None else "killed, but does not go"
        violation = self._link.violation if self._link is not None else None
        return ProcessEnd(
            self.cartridge.id,
            f"was {words}" if words.startswith("killed") else words,
            oom_killed=status is not None and status.oom_killed,
            killed_for=self._killed_for,
            violation=None if violation is None else str(violation),
            link=self._link_trouble(),
            stderr=self._tail.text(),
        )

    def _link_trouble(self) -> str | None:
        if self._link_end is LinkEnd.BROKEN:
            return self._link_note
        return "it closed its stdout, stayed, and was ended by the host" if self._outlived_link else None

    def _end(self, end: ProcessEnd) -> None:
        if end.violation is not None and self.handshake.step is not Step.DONE:
            self.refusal = self.refusal or end.violation
        self._keeper.ended(self, end)
        self.gone.set()

    def _spawn(self) -> ChildProcess:
        record = self.cartridge.record
        run_id = self._guardian.run_id if self._guardian is not None else new_run_id()
        own = {"CAPDAG_CONFIG": json.dumps(dict(record.settings)), **record.env}
        return spawn(record.command, env=child_environment(own, run_id), cwd=record.cwd, guardian=self._guardian)

    async def _keep(self, child: ChildProcess) -> None:
        # stdout stays open after the link's end: the process must be able to finish what it writes.
        self._link = FdLink(
            self.cartridge.id, child.stdout_fd, child.stdin_fd, close_read=lambda: None, close_write=child.close_stdin
        )
        link_over, stderr_over = trio.Event(), trio.Event()
        stderr_scope = trio.CancelScope()
        async with trio.open_nursery() as pipes:
            pipes.start_soon(self._drain_stderr, child, stderr_scope, stderr_over)
            pipes.start_soon(self._run_link, self._link, link_over)
            pipes.start_soon(self._wait_exit, child)
            self._link.send(self.handshake.begin())
            await self._watch()
            await self._take_rest(child, self._link)
            self._link.close()
            await link_over.wait()
            await child.stop(self._keeper.settings.stop_grace if self.was_stopped else 0)
            stderr_scope.cancel()
            await stderr_over.wait()
            pipes.cancel_scope.cancel()

    async def _drain_stderr(self, child: ChildProcess, scope: trio.CancelScope, over: trio.Event) -> None:
        with scope:
            await drain_stderr(child.stderr_fd, name=self.cartridge.id, tail=self._tail, log=log)
        over.set()

    async def _run_link(self, link: FdLink, over: trio.Event) -> None:
        self._link_end = await link.run(self)
        over.set()
        self.wake()

    async def _wait_exit(self, child: ChildProcess) -> None:
        await child.wait_exit()
        self._exited = True
        self.wake()

    async def _watch(self) -> None:
        """Do what falls due, until the process has ended or has to."""
        while not self._is_over():
            with trio.move_on_at(self._due()):
                await self._changed.wait()
            self._changed = trio.Event()
            if self._killed_for is not None:
                continue
            if self.handshake.step is Step.DONE:
                self._keeper.check(self.cartridge)
            elif trio.current_time() >= self._due():
                self.waited = f"no {self.handshake.step.name} came in {self._step_timeout():g} s"

    def _is_over(self) -> bool:
        wrong = self.refusal is not None or self.waited is not None
        return self._exited or self._link_end is not None or self.was_stopped or wrong

    def _due(self) -> float:
        if self._killed_for is not None:
            return float("inf")
        if self.handshake.step is Step.DONE:
            return self._keeper.due(self.cartridge)
        return self._step_began + self._step_timeout()

    def _step_timeout(self) -> float:
        settings = self._keeper.settings
        return settings.handshake_timeout if self.handshake.step is Step.HELLO else settings.identity_timeout

    async def _take_rest(self, child: ChildProcess, link: FdLink) -> None:
        """Read what the process has left in the pipe: an END may be there."""
        if self._link_end is not None and not self.was_stopped:
            with trio.move_on_after(self._keeper.settings.exit_patience):
                await child.wait_exit()
            self._outlived_link = child.exit_status() is None
        if child.exit_status() is not None:
            # A grandchild may hold the pipe; it is killed while the process's id still pins the group's.
            child.kill_group(signal.SIGKILL)
            link.drain()
