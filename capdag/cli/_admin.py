"""What the admin routes ask of the process they run in: `capdag ps` and its --reset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capdag.errors import CapdagError
from capdag.host import HostRuntime
from capdag.relay import Switch


class LocalAdmin:
    """Answers for the rooms of one process: a switch, a host or both (`capdag.gateway.Admin`)."""

    def __init__(
        self, switch: Switch | None = None, host: HostRuntime | None = None, endpoint: Path | None = None
    ) -> None:
        self.switch = switch
        self.host = host
        self._endpoint = endpoint

    def ps(self) -> Mapping[str, Any]:
        """Return the snapshot of each room there is, by name, and the `endpoint` where a host meets its engine."""
        rooms = {"switch": self.switch, "host": self.host}
        facts: dict[str, Any] = {name: room.snapshot() for name, room in rooms.items() if room is not None}
        return facts if self._endpoint is None else {**facts, "endpoint": str(self._endpoint)}

    def reset(self, name: str) -> None:
        """Give a cartridge that was given up another chance. Raises CapdagError for a name nobody here has.

        One that has not told its caps is started at once, since no request can ask for it.
        """
        if self.host is None:
            raise CapdagError(f"no cartridge runs in this process: {name!r} may be one of a host process beside it")
        self.host.reset(name)
        if any(cartridge["id"] == name and not cartridge["caps"] for cartridge in self.host.snapshot()["cartridges"]):
            self.host.start(name)
