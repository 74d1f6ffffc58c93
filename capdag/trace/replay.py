"""The host's part of a trace, played towards a cartridge (protocol-spec/traces.md, Replay)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from capdag.transport import (
    ChildProcess,
    ExitStatus,
    FdLink,
    StderrTail,
    child_environment,
    drain_stderr,
    new_run_id,
    spawn,
)
from capdag.transport.background import background
from capdag.wire import MessageId

from .file import Closed, Exited, Record, Trace
from .player import Player
from .story import requests_of

PATIENCE = 10.0
"""Seconds that the cartridge may take for a step, beyond those it took when it was recorded."""

_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """How a request to the cartridge ended when it was recorded (`then`), and `now`; None if it did not end."""

    rid: MessageId
    cap: str
    then: str | None
    now: str | None

    @property
    def same(self) -> bool:
        """True if both ended the same way."""
        return self.then == self.now


class Replay(NamedTuple):
    """What came of a replay. `exit_then` is None for a trace without the process's end; `violation` says what the
    cartridge sent that is no frame; `notes` where it did not come as far as in the trace."""

    outcomes: Sequence[Outcome]
    exit_then: str | None
    exit_now: str
    violation: str | None
    notes: Sequence[str]
    stderr: str

    @property
    def same(self) -> bool:
        """True if every request ended as recorded, and so did the process, if the trace has its end."""
        return self.exit_then in (None, self.exit_now) and all(outcome.same for outcome in self.outcomes)


async def replay(trace: Trace, command: Sequence[str], *, patience: float = PATIENCE) -> Replay:
    """Start `command` and play the host's part of `trace` to it. Cancellation kills the process and passes through.

    Raises SpawnError if it cannot be started, TraceError for a trace that was not recorded from a process's start.
    """
    player = Player(trace.records, patience)
    child = spawn(command, env=child_environment({}, new_run_id()))
    tail = StderrTail()
    link = FdLink("replay", child.stdout_fd, child.stdin_fd, close_read=lambda: None, close_write=child.close_stdin)
    player.use(link)
    try:
        async with background(partial(drain_stderr, child.stderr_fd, name="replay", tail=tail, log=_log)):
            async with background(partial(link.run, player)):
                await player.play()
                await _await_death(child, trace.records, patience)
                await link.flushed()
            status = await child.stop(patience)
    finally:
        await child.stop(0)
        child.close()
    return Replay(
        outcomes=[
            Outcome(story.rid, story.cap, story.end, player.ends.get(story.rid))
            for story in requests_of(trace.records)
            if story.asked == "cartridge"
        ],
        exit_then=next((_words(record) for record in trace.records if isinstance(record, Exited)), None),
        exit_now=status.describe(),
        violation=None if link.violation is None else str(link.violation),
        notes=player.notes,
        stderr=tail.text(),
    )


async def _await_death(child: ChildProcess, records: Sequence[Record], patience: float) -> None:
    """Wait for the end of a cartridge that had ended before its host let it go."""
    last = next((record for record in records if isinstance(record, (Exited, Closed)) and not _to_host(record)), None)
    if isinstance(last, Exited):
        with trio.move_on_after(patience):
            await child.wait_exit()


def _to_host(record: Exited | Closed) -> bool:
    return isinstance(record, Closed) and record.to == "host"


def _words(record: Exited) -> str:
    return ExitStatus(code=record.code, signal=record.signal).describe()
