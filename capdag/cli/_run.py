"""One run of a program that owns processes and sockets: swept before, guarded while it lives."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from capdag.transport.allocator import keep_freed_blocks
from capdag.transport.guardian import Guardian, new_run_id, open_guardian
from capdag.transport.runs import sweep_stale_runs, write_run_file

from ._folders import runtime_folder

_log = logging.getLogger(__name__)


class Run:
    """The guardian, and the sockets of this run. Made by `open_run`.

    A socket is announced before it is bound, for the sweep of a later run, and told to the guardian once it is ours.
    """

    def __init__(self, folder: Path, guardian: Guardian) -> None:
        self.folder = folder
        self.guardian = guardian
        self._sockets: list[Path] = []
        self.announce()

    def announce(self, *sockets: Path) -> None:
        """Note in the run file which sockets are about to be bound."""
        self._sockets += sockets
        write_run_file(self.folder, self.guardian, self._sockets)


@asynccontextmanager
async def open_run() -> AsyncIterator[Run]:
    """Clean up after servers that were killed, then guard what is spawned and bound in the block. Tunes the allocator.

    Raises FolderError and SpawnError.
    """
    keep_freed_blocks()
    folder = runtime_folder()
    for swept in await trio.to_thread.run_sync(sweep_stale_runs, folder):
        _log.warning("%s", swept.describe())
    async with open_guardian(new_run_id()) as guardian:
        yield Run(folder, guardian)
