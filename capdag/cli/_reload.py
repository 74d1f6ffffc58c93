"""The cartridges of a running host, read again: `capdag ps --reload`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capdag.config import Config
from capdag.host import CartridgeRecord, HostRuntime

from ._roster import read_roster
from ._settings import checked_models_folder


class RosterReader:
    """Brings a host to what the configuration and the models folder say now. `settle` reads the configuration as at
    the start, `records` are those the host has."""

    def __init__(
        self,
        host: HostRuntime,
        settle: Callable[[], Config],
        commands: Sequence[str],
        records: Sequence[CartridgeRecord],
    ) -> None:
        self._host = host
        self._settle = settle
        self._commands = commands
        self._records = {record.id: record for record in records}

    def reload(self) -> Mapping[str, Any]:
        """Read again and return what has changed: ids of `added`, `changed` and `retired`, how many were `kept`, and
        `notices`. Raises CapdagError, and changes nothing, for what could not be served."""
        config = self._settle()
        roster = read_roster(config, checked_models_folder(config), self._commands)
        self._host.sync_roster(roster.records)
        former, self._records = self._records, {record.id: record for record in roster.records}
        changed = [name for name, record in self._records.items() if name in former and record != former[name]]
        added = [name for name in self._records if name not in former]
        for name in (*added, *changed):
            if not self._records[name].caps:  # nobody can ask for it before it has told them
                self._host.start(name)
        return {
            "added": added,
            "changed": changed,
            "retired": [name for name in former if name not in self._records],
            "kept": len(self._records) - len(added) - len(changed),
            "notices": roster.notices,
        }
