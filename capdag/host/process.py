"""One process of a cartridge, from spawn to reap (protocol-spec/host.md, Start and Death).

The process belongs to the task that spawned it from its first moment; however that task ends, the process is killed
and reaped, its pipes are closed and what it held is settled.
"""

from __future__ import annotations

import json
import signal

import trio

from capdag.transport import ByteLink, LinkEnd, child_link
from capdag.transport._groups import KILL
from capdag.transport.guardian import Guardian, new_run_id
from capdag.transport.process import ChildProcess, SpawnError, child_environment, spawn
from capdag.transport.stderr import StderrTail, drain_stderr

from .cartridge import Cartridge
from .deaths import ProcessEnd
from .exchange import log
from .session import Keeper, Session

_AT_ONCE = 0.1
"""Seconds between the end of stdout and the exit within which the two are one."""


class Process(Session):
    """The session of a cartridge whose process the host has started."""

    def __init__(self, cartridge: Cartridge, keeper: Keeper, guardian: Guardian | None) -> None:
        super().__init__(cartridge, keeper)
        self._guardian = guardian
        self._child: ChildProcess | None = None
        self._outlived_link = False
        self._closed_at = 0.0
        self._exited_at: float | None = None
        self._tail = StderrTail()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill_group(KILL)

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
        violation = self._link.violation if isinstance(self._link, ByteLink) else None
        may_be_ours = status is None or status.code == 0 or status.signal in (signal.SIGTERM, KILL)
        if self._outlived_link and may_be_ours:
            words = "ended by the host"  # by which signal is chance
        return ProcessEnd(
            self.cartridge.id,
            f"was {words}" if words.startswith(("killed", "ended by")) else words,
            oom_killed=status is not None and status.oom_killed,
            killed_for=self._killed_for,
            violation=None if violation is None else str(violation),
            link=self._link_trouble(),
            stderr=self._tail.text(),
            may_be_ours=may_be_ours,
        )

    def _link_trouble(self) -> str | None:
        if self._link_end is LinkEnd.BROKEN:
            return self._link_note
        if self._outlived_link:
            return "it had closed its stdout, and stayed"
        ahead = (self._exited_at or 0.0) - self._closed_at if self._link_end is LinkEnd.EOF else 0.0
        return f"it had closed its stdout {ahead:.1f} s before" if ahead > _AT_ONCE else None

    def _spawn(self) -> ChildProcess:
        record = self.cartridge.record
        run_id = self._guardian.run_id if self._guardian is not None else new_run_id()
        own = {"CAPDAG_CONFIG": json.dumps(dict(record.settings)), **record.env}
        return spawn(record.command, env=child_environment(own, run_id), cwd=record.cwd, guardian=self._guardian)

    async def _keep(self, child: ChildProcess) -> None:
        # A process that closes its stdout and one that exits look the same for a moment. Its stdin stays open for so
        # long, as its end would have the first one exit too.
        self._link = link = child_link(self.cartridge.id, child, close_stdin=lambda: None)
        link_over, stderr_over = trio.Event(), trio.Event()
        stderr_scope = trio.CancelScope()
        async with trio.open_nursery() as pipes:
            pipes.start_soon(self._drain_stderr, child, stderr_scope, stderr_over)
            pipes.start_soon(self._run_link, child, link, link_over)
            pipes.start_soon(self._wait_exit, child)
            link.send(self.handshake.begin())
            await self._watch()
            await self._take_rest(child, link)
            link.close()
            await link_over.wait()
            await child.stop(self._keeper.settings.stop_grace if self.was_stopped else 0)
            stderr_scope.cancel()
            await stderr_over.wait()
            pipes.cancel_scope.cancel()

    async def _drain_stderr(self, child: ChildProcess, scope: trio.CancelScope, over: trio.Event) -> None:
        with scope:
            await drain_stderr(child.stderr_source, name=self.cartridge.id, tail=self._tail, log=log)
        over.set()

    async def _run_link(self, child: ChildProcess, link: ByteLink, over: trio.Event) -> None:
        self._link_end = await link.run(self)
        self._closed_at = trio.current_time()
        if self._link_end is LinkEnd.VIOLATION:
            child.close_stdin()
        over.set()
        self.wake()

    async def _wait_exit(self, child: ChildProcess) -> None:
        await child.wait_exit()
        self._exited_at = trio.current_time()
        self.wake()

    def _is_over(self) -> bool:
        return self._exited_at is not None or super()._is_over()

    async def _take_rest(self, child: ChildProcess, link: ByteLink) -> None:
        """Read what the process has left in the pipe: an END may be there."""
        if self._link_end is not None and not self.was_stopped:
            with trio.move_on_after(self._keeper.settings.exit_patience):
                await child.wait_exit()
            self._outlived_link = child.exit_status() is None
        if child.exit_status() is not None:
            # A grandchild may hold the pipe; it is killed while the process's id still pins the group's.
            child.kill_group(KILL)
            await link.read_rest()
