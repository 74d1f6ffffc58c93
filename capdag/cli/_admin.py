"""What the admin routes ask of the process they run in: `capdag ps` and its --reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capdag.errors import CapdagError
from capdag.host import HostRuntime
from capdag.relay import Switch


class LocalAdmin:
    """Answers for the rooms of one process: a switch, a host or both (`capdag.gateway.Admin`)."""

    def __init__(self, switch: Switch | None = None, host: HostRuntime | None = None) -> None:
        self.switch = switch
        self.host = host

    def ps(self) -> Mapping[str, Any]:
        """Return the snapshot of each room there is, by name."""
        rooms = {"switch": self.switch, "host": self.host}
        return {name: room.snapshot() for name, room in rooms.items() if room is not None}

    def reset(self, name: str) -> None:
        """Give a cartridge that was given up another chance. Raises CapdagError for a name nobody here has."""
        if self.host is None:
            raise CapdagError(f"no cartridge runs in this process: {name!r} may be one of a host process beside it")
        self.host.reset(name)
