"""Credit: one unit a CHUNK, a window per stream (protocol-spec/wire.md, Credit)."""

from __future__ import annotations

from .frame import FixedMeta, Frame, FrameType, MessageId
from .stream_life import WindowState

REQUEST, RESPONSE = "request", "response"
"""Values of meta.credit_dir: a grant for argument streams, or for output streams."""


def credit_frame(rid: MessageId, stream_id: str, credit: int, direction: str, *, xid: MessageId | None = None) -> Frame:
    """Build a CREDIT: `direction` is `request` for argument streams, `response` for outputs."""
    return Frame(FrameType.CREDIT, rid, stream_id=stream_id, credit=credit, routing_id=xid, meta=_METAS[direction])


_METAS = {direction: FixedMeta({"credit_dir": direction}) for direction in (REQUEST, RESPONSE)}


class SendWindow:
    """The sender's half: CHUNKs it may still send on one stream.

    A grant never lifts what remains above the initial window: a receiver cannot owe more than it offered.
    """

    __slots__ = ("initial", "remaining")

    def __init__(self, initial: int) -> None:
        self.initial = initial
        self.remaining = initial

    @property
    def state(self) -> WindowState:
        """Where the window stands in `SENDER_LIFE`."""
        return WindowState.CREDIT if self.remaining > 0 else WindowState.EMPTY

    def take(self, count: int = 1) -> bool:
        """Use credit for `count` CHUNKs; False, and none is used, if so much is not left."""
        if self.remaining < count:
            return False
        self.remaining -= count
        return True

    def grant(self, credit: int) -> None:
        """Add a grant."""
        self.remaining = min(self.initial, self.remaining + credit)


class ReceiveWindow:
    """The receiver's half: counts arrivals against what was granted and says when to grant.

    Grants everything pending once it reaches max(1, initial // 2); `flush` gives what is pending to a receiver that
    waits on an empty stream, so that unequal windows along a path cannot starve each other.
    """

    __slots__ = ("_pending", "_remaining", "initial")

    def __init__(self, initial: int) -> None:
        self.initial = initial
        self._remaining = initial
        self._pending = 0

    @property
    def state(self) -> WindowState:
        """Where the window stands in `RECEIVER_LIFE`."""
        return WindowState.CREDIT if self._remaining > 0 else WindowState.EMPTY

    def arrive(self) -> bool:
        """Count one CHUNK; False, and nothing is counted, if the sender was out of credit (CREDIT_VIOLATION)."""
        if self._remaining <= 0:
            return False
        self._remaining -= 1
        return True

    def note_grant(self, credit: int) -> None:
        """Count a grant that was seen on its way: for whoever watches a stream from between its ends."""
        self._remaining = min(self.initial, self._remaining + credit)

    def consume(self, chunks: int = 1) -> int:
        """Count consumed CHUNKs; returns the grant that is now due, or 0."""
        self._pending += chunks
        return self.flush() if self._pending >= max(1, self.initial // 2) else 0

    def flush(self) -> int:
        """Return whatever is pending as a grant (0 if nothing)."""
        granted, self._pending = self._pending, 0
        self._remaining += granted
        return granted
