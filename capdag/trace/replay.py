"""The host's part of a trace, played towards a cartridge (protocol-spec/traces.md, Replay)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from capdag.transport import (
    ChildProcess,
    ExitStatus,
    StderrTail,
    child_environment,
    child_link,
    drain_stderr,
    new_run_id,
    spawn,
)
from capdag.transport.background import background
from capdag.wire import MessageId

from .file import SETTINGS_VARIABLE, Closed, Exited, Record, Trace, Unreadable
from .player import Player
from .story import requests_of

PATIENCE = 10.0
"""Seconds that the cartridge may take for a step, beyond those it took when it was recorded."""

LONGEST_STOP = 4.0
"""Seconds that the cartridge has for its end once its stdin is closed: an ordered end takes two."""

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
    cartridge sent that is no frame, `violation_then` what it had sent; `notes` where it did not come as far."""

    outcomes: Sequence[Outcome]
    exit_then: str | None
    exit_now: str
    violation_then: str | None
    violation: str | None
    notes: Sequence[str]
    stderr: str

    @property
    def same(self) -> bool:
        """True if every request ended as recorded, and so did the process, if the trace has its end."""
        ended_same = self.exit_then in (None, self.exit_now)
        broke_same = (self.violation_then is None) == (self.violation is None)
        return ended_same and broke_same and all(outcome.same for outcome in self.outcomes)


async def replay(trace: Trace, command: Sequence[str], *, patience: float = PATIENCE) -> Replay:
    """Start `command` and play the host's part of `trace` to it. Cancellation kills the process and passes through.

    The cartridge gets the settings of the trace, unless CAPDAG_CONFIG of this process holds others.

    Raises SpawnError if it cannot be started, TraceError for a trace that was not recorded from a process's start.
    """
    player = Player(trace.records, patience)
    child = spawn(command, env=child_environment(_settings_of(trace), new_run_id()))
    tail = StderrTail()
    link = child_link("replay", child, close_stdin=child.close_stdin)
    player.use(link)
    try:
        async with background(partial(drain_stderr, child.stderr_source, name="replay", tail=tail, log=_log)):
            async with background(partial(link.run, player)):
                await player.play()
                await _await_death(child, player, trace.records, patience)
                await link.flushed()
            status = await child.stop(min(patience, LONGEST_STOP))
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
        violation_then=_violation(trace.records),
        violation=None if link.violation is None else str(link.violation),
        notes=player.notes,
        stderr=tail.text(),
    )


def _settings_of(trace: Trace) -> dict[str, str]:
    own = os.environ.get(SETTINGS_VARIABLE)
    return {SETTINGS_VARIABLE: own if own is not None else json.dumps(trace.head.settings or {})}


async def _await_death(child: ChildProcess, player: Player, records: Sequence[Record], patience: float) -> None:
    """Wait for the end of a cartridge that had ended, or had sent what is no frame, before its host let it go."""
    for record in records:
        with trio.move_on_after(patience):
            if isinstance(record, Unreadable) and record.to == "host":
                await player.over()
            elif isinstance(record, Exited):
                await child.wait_exit()
        if isinstance(record, Closed) and record.to == "cartridge":
            return


def _violation(records: Sequence[Record]) -> str | None:
    return next((record.error for record in records if isinstance(record, Unreadable) and record.to == "host"), None)


def _words(record: Exited) -> str:
    return ExitStatus(code=record.code, signal=record.signal).describe()
