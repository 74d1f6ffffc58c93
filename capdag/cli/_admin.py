"""What the admin routes ask of the process they run in: `capdag ps`, its --reset and its --reload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capdag.errors import CapdagError
from capdag.host import HostRuntime
from capdag.relay import Switch

from ._reload import RosterReader

if TYPE_CHECKING:
    from ._doors import Doors


class LocalAdmin:
    """Answers for the rooms of one process: a switch, a host or both (`capdag.gateway.Admin`)."""

    def __init__(
        self,
        switch: Switch | None = None,
        host: HostRuntime | None = None,
        doors: Doors | None = None,
        reader: RosterReader | None = None,
    ) -> None:
        self.switch = switch
        self.host = host
        self._doors = doors
        self._reader = reader

    def ps(self) -> Mapping[str, Any]:
        """Return the snapshot of each room there is, by name, and of the `links` to other processes."""
        rooms = {"switch": self.switch, "host": self.host, "links": self._doors}
        return {name: room.snapshot() for name, room in rooms.items() if room is not None}

    def reset(self, name: str) -> None:
        """Give a cartridge that was given up another chance. Raises CapdagError for a name nobody here has.

        One that has not told its caps is started at once, since no request can ask for it.
        """
        if self.host is None:
            raise CapdagError(f"no cartridge runs in this process: {name!r} may be one of a host process beside it")
        self.host.reset(name)
        if any(cartridge["id"] == name and not cartridge["caps"] for cartridge in self.host.snapshot()["cartridges"]):
            self.host.start(name)

    def reload(self) -> Mapping[str, Any]:
        """Read again which cartridges there are. Raises CapdagError for a mistake; then nothing has changed."""
        if self._reader is None:
            raise CapdagError("no cartridge runs in this process")
        return self._reader.reload()
