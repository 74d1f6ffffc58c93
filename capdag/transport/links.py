"""Links: how frames get from one room to the next (protocol-spec/wire.md, Links).

The law: no await between a read and the last append. `send` is a plain call; in one process host, switch and call are
joined by such calls on lists of frames, over a socket by the same interface.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVarTuple, Unpack, runtime_checkable

from capdag.wire import FrameView
from capdag.wire.blocks import Parcel, single_frames

log = logging.getLogger(__name__)

Given = TypeVarTuple("Given")

_CLOSED_THERE = "the other side closed the link"


class Receiver(Protocol):
    """What a link delivers to. Both methods are synchronous, never await and never raise."""

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Take the frames of one read, in order."""

    def closed(self, reason: str) -> None:
        """The link has ended: nothing more comes and nothing sent will arrive. Called once."""


@runtime_checkable
class RunReceiver(Receiver, Protocol):
    """A receiver for which a link over descriptors need not take runs of CHUNKs apart."""

    def deliver_parcels(self, batch: Sequence[Parcel]) -> None:
        """Take what one read has brought, in order, in place of `deliver`. Synchronous, never raises."""


class Link(Protocol):
    """One end of a link. After its end `send` ignores what it is given."""

    name: str

    def send(self, batch: Sequence[Parcel]) -> None:
        """Queue or deliver frames, in order, without awaiting."""

    def close(self) -> None:
        """End the link from this side."""


class Dispatcher:
    """Makes a receiver's turns whole: a call made during a turn waits until that turn is over.

    Rooms joined by plain calls would otherwise re-enter each other half-way through a change of state. One per
    receiver; an exception ends its own call only, and is logged. `after` is called at the end of each turn.
    """

    def __init__(self, after: Callable[[], None] | None = None) -> None:
        self._after = after
        self._pending: deque[Callable[[], None]] = deque()
        self._dispatching = False

    def run(self, call: Callable[[Unpack[Given]], None], *args: *Given) -> None:
        """Run `call` with `args` now, or right after the turn that is under way."""
        if self._dispatching:
            self._pending.append(partial(call, *args))
            return
        self._dispatching = True
        turn: Callable[[], None] | None = None
        try:
            while True:
                try:
                    try:
                        call(*args) if turn is None else turn()
                    finally:
                        if self._after is not None:
                            self._after()
                except Exception:
                    log.exception("a routing turn failed; its call ends, the others go on")
                if not self._pending:
                    return
                turn = self._pending.popleft()
        finally:
            self._dispatching = False


class LocalLink:
    """One end of a link inside a process: `send` is the far end's `deliver`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._peer: LocalLink | None = None
        self._receiver: Receiver | None = None
        self._early: list[FrameView] = []

    def connect(self, receiver: Receiver) -> None:
        """Name the receiver of this end. What came before now is delivered first, an end of the link as well."""
        self._receiver = receiver
        if self._early:
            early, self._early = self._early, []
            receiver.deliver(early)
        if self._peer is None:
            receiver.closed(_CLOSED_THERE)

    def send(self, batch: Sequence[Parcel]) -> None:
        """Deliver to the far end, frame by frame."""
        peer = self._peer
        if peer is None or not batch:
            return
        frames = single_frames(batch)
        if peer._receiver is None:
            peer._early.extend(frames)
        else:
            peer._receiver.deliver(frames)

    def close(self) -> None:
        """End the link: the far end's receiver is told."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer._peer = None
            if peer._receiver is not None:
                peer._receiver.closed(_CLOSED_THERE)


def local_link_pair(name: str) -> tuple[LocalLink, LocalLink]:
    """Return the two ends of a link inside this process."""
    left, right = LocalLink(name), LocalLink(name)
    left._peer, right._peer = right, left
    return left, right
