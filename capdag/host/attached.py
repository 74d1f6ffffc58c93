"""A cartridge that runs already and was connected elsewhere (protocol-spec/host.md, Attach)."""

from __future__ import annotations

import trio

from capdag.errors import AttributionClass, CapdagError
from capdag.transport import ByteLink, LinkEnd, LocalLink

from .cartridge import Cartridge
from .deaths import ProcessEnd
from .session import Keeper, Session


class AttachError(CapdagError):
    """A cartridge could not be attached. The text says what was wrong with its answer, or what did not come."""

    code = "SPAWN_FAILED"
    attribution = AttributionClass.ENVIRONMENT


class Attached(Session):
    """The session of a cartridge whose process is not the host's: all that the host can end is its link."""

    def __init__(self, cartridge: Cartridge, keeper: Keeper, link: ByteLink | LocalLink) -> None:
        super().__init__(cartridge, keeper)
        self._link = link

    def _kill(self) -> None:
        self._link_end = LinkEnd.CLOSED
        self.wake()

    def closed(self, reason: str) -> None:
        """The link has ended."""
        super().closed(reason)
        self._link_end = self._link_end or LinkEnd.EOF
        self.wake()

    async def run(self) -> None:
        """Keep the cartridge until its link ends or has to. Cancellation closes the link."""
        link = self._link
        assert link is not None
        self._step_began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                if isinstance(link, ByteLink):
                    nursery.start_soon(link.run, self)
                else:
                    link.connect(self)
                self.send(self.handshake.begin())
                await self._watch()
                link.close()
        finally:
            link.close()
            self._end(self._story())

    def _story(self) -> ProcessEnd:
        violation = self._link.violation if isinstance(self._link, ByteLink) else None
        return ProcessEnd(
            self.cartridge.id,
            f"has left: {self._link_note}" if self._link_note else "was disconnected",
            killed_for=self._killed_for,
            violation=None if violation is None else str(violation),
            may_be_ours=True,
        )
