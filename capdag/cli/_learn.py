"""What a cartridge can do that has told nobody yet: it is started once and asked for its manifest."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import trio

from capdag.host import CartridgeRecord, HostSettings
from capdag.host.cartridge import IDENTITY, Cartridge
from capdag.host.deaths import ProcessEnd
from capdag.host.handshake import Step
from capdag.host.lifecycle import Event
from capdag.host.process import Process
from capdag.transport.background import background
from capdag.transport.guardian import Guardian
from capdag.wire import FrameView

from ._roster import Roster

SLOW = 3.0
"""Seconds after which a cartridge that keeps the start waiting is named."""

_log = logging.getLogger(__name__)


async def learn_caps(roster: Roster, guardian: Guardian, settings: HostSettings) -> Roster:
    """Return the roster with the caps of every cartridge that had none, all asked at once.

    One that does not start, within the host's timeouts, is left out and its reason becomes a notice.
    """
    learners = {record.id: _Learner(record, settings) for record in roster.records if not record.caps}
    if learners:
        _log.info("starting %s once, to learn what it can do", ", ".join(learners))
    async with background(partial(_name_the_slow, learners, settings)), trio.open_nursery() as nursery:
        for learner in learners.values():
            nursery.start_soon(learner.run, guardian)
    failures = {name: learner.failure for name, learner in learners.items() if learner.failure}
    return Roster(
        [
            learners[record.id].learned() if record.id in learners else record
            for record in roster.records
            if record.id not in failures
        ],
        [*roster.notices, *(f"NOT SERVED: {failure}" for failure in failures.values())],
    )


async def _name_the_slow(learners: Mapping[str, _Learner], settings: HostSettings) -> None:
    """Say for whom the start waits, so that a command that is no cartridge does not look like a hang."""
    await trio.sleep(SLOW)
    waiting = ", ".join(name for name, learner in learners.items() if not learner.done)
    _log.warning("waiting for %s to say HELLO, up to %g s in all", waiting, settings.handshake_timeout)


class _Learner:
    """Keeps one process as the host does (`capdag.host.process.Keeper`), to the end of its handshake."""

    def __init__(self, record: CartridgeRecord, settings: HostSettings) -> None:
        self.settings = settings
        self.done = False
        self.failure = ""
        self._record = record
        self._process: Process | None = None

    async def run(self, guardian: Guardian) -> None:
        """Start the process and end it when it has told its manifest."""
        cartridge = Cartridge(self._record, self.settings)
        cartridge.move(Event.START)
        self._process = Process(cartridge, self, guardian)
        await self._process.run()
        self.done = True

    def learned(self) -> CartridgeRecord:
        """Return the record with the caps of the manifest."""
        assert self._process is not None
        manifest = self._process.handshake.manifest
        assert manifest is not None
        caps = [entry.facts for entry in manifest.caps if entry.urn != IDENTITY]
        return msgspec.structs.replace(self._record, caps=caps)

    def received(self, process: Process, batch: Sequence[FrameView]) -> None:
        process.take(batch)
        if process.handshake.step is Step.DONE:
            process.stop()

    def check(self, cartridge: Cartridge) -> None:
        """Nothing falls due for a process that is about to be stopped."""

    def due(self, cartridge: Cartridge) -> float:  # noqa: ARG002 - the host's protocol
        return math.inf

    def ended(self, process: Process, end: ProcessEnd) -> None:
        if process.handshake.step is not Step.DONE:
            self.failure = end.failed_start(process.refusal, process.waited).message
