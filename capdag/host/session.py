"""The link of a cartridge from HELLO to its end: handshake, then deadlines (protocol-spec/host.md, Start)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import trio

from capdag.errors import AttributionClass, LocalProtocolError, ProtocolError
from capdag.transport import ByteLink, LinkEnd, LocalLink
from capdag.wire import Failure, FrameView
from capdag.wire.blocks import Parcel, single_frames

from .cartridge import Cartridge
from .deaths import ProcessEnd
from .handshake import Handshake, Step
from .lifecycle import SERVING, Event
from .settings import HostSettings


class Keeper(Protocol):
    """The runtime, as its sessions see it. Every call is one routing turn."""

    settings: HostSettings

    def received(self, session: Session, batch: Sequence[Parcel]) -> None:
        """Frames came, of the handshake too: to be given back to `Session.take`."""

    def check(self, cartridge: Cartridge) -> None:
        """Do what is due for a running cartridge."""

    def due(self, cartridge: Cartridge) -> float:
        """Return when `check` is to be called next."""

    def ended(self, session: Session, end: ProcessEnd) -> None:
        """The session is over, or could not begin."""


class Session:
    """The `Port` of a cartridge and the receiver of its link; what is behind the link, its subclasses know.

    `refusal`: what was wrong with its answer. `waited`: what did not come, or not in time. `settled` is set
    once it is ready or over, `gone` after the end.
    """

    def __init__(self, cartridge: Cartridge, keeper: Keeper) -> None:
        self.cartridge = cartridge
        self.handshake = Handshake(keeper.settings.limits)
        self.refusal: str | None = None
        self.waited: str | None = None
        self.was_stopped = False
        self.settled = trio.Event()
        self.gone = trio.Event()
        self._keeper = keeper
        # What a link calls with the frames of each read.
        self.deliver = self.deliver_parcels = partial(keeper.received, self)
        self._link: ByteLink | LocalLink | None = None
        self._link_end: LinkEnd | None = None
        self._link_note = ""
        self._killed_for: Failure | None = None
        self._changed = trio.Event()
        self._step_began = 0.0

    async def run(self) -> None:
        """Keep the session until it is over; however that happens, what it held is settled then."""
        raise NotImplementedError

    # Port

    @property
    def bytes_queued(self) -> int:
        """Bytes that wait for the cartridge to read."""
        return self._link.bytes_queued if isinstance(self._link, ByteLink) else 0

    def send(self, batch: Sequence[Parcel]) -> None:
        """Queue frames for the cartridge. One that cannot take what every cartridge is sent is ended."""
        if self._link is None:
            return
        try:
            self._link.send(batch)
        except LocalProtocolError as error:
            text = f"cartridge {self.cartridge.id!r} agreed on too small frames ({error})"
            self.kill(Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, text))

    def kill(self, failure: Failure) -> None:
        """End it at once; the first reason counts."""
        if self._killed_for is None:
            self._killed_for = failure
            if self.cartridge.state in SERVING:
                self.cartridge.move(Event.STOP)
            self._kill()

    def _kill(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Have it ended in order."""
        if not self.was_stopped:
            self.was_stopped = True
            if self.cartridge.state in SERVING or self.handshake.step is not Step.DONE:
                self.cartridge.move(Event.STOP)
            self.wake()

    def wake(self) -> None:
        """Have the deadlines looked at again."""
        self._changed.set()

    # Receiver of the link

    def closed(self, reason: str) -> None:
        """The link has ended."""
        self._link_note = reason

    def take(self, batch: Sequence[Parcel]) -> Sequence[Parcel]:
        """Feed the handshake until it is done, and return the frames that follow it."""
        frames = single_frames(batch)
        for position, view in enumerate(frames):
            if self.handshake.step is Step.DONE:
                return frames[position:]
            if self.refusal is None:
                self._shake(view)
        return []

    def _shake(self, view: FrameView) -> None:
        assert self._link is not None
        before = self.handshake.step
        try:
            reply = self.handshake.feed(view)
            if isinstance(self._link, ByteLink):
                self._link.set_limits(self.handshake.limits)
            self._link.send(reply)
        except ProtocolError as error:
            self.refusal = str(error)
        if self.handshake.step is not before:
            self._step_began = trio.current_time()
        self.wake()

    def _end(self, end: ProcessEnd) -> None:
        if end.violation is not None and self.handshake.step is not Step.DONE:
            self.refusal = self.refusal or end.violation
        self._keeper.ended(self, end)
        self.settled.set()
        self.gone.set()

    # Deadlines

    async def _watch(self) -> None:
        """Do what falls due, until the session has ended or has to."""
        while not self._is_over():
            with trio.move_on_at(self._due()):
                await self._changed.wait()
            self._changed = trio.Event()
            if self._killed_for is not None:
                continue
            if self.handshake.step is Step.DONE:
                self._keeper.check(self.cartridge)
            elif trio.current_time() >= self._due():
                self.waited = f"no {self.handshake.step.name} came in {self._step_timeout():g} s"

    def _is_over(self) -> bool:
        wrong = self.refusal is not None or self.waited is not None
        return self._link_end is not None or self.was_stopped or wrong

    def _due(self) -> float:
        if self._killed_for is not None:
            return float("inf")
        if self.handshake.step is Step.DONE:
            return self._keeper.due(self.cartridge)
        return self._step_began + self._step_timeout()

    def _step_timeout(self) -> float:
        settings = self._keeper.settings
        return settings.handshake_timeout if self.handshake.step is Step.HELLO else settings.identity_timeout
