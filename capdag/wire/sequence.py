"""seq: numbering what we send, and the order it stands for (protocol-spec/wire.md, seq)."""

from __future__ import annotations

from capdag.errors import RemoteProtocolError

from .frame import FLOW_TYPES, TERMINAL_TYPES, Frame, MessageId, show_id

FlowKey = tuple[MessageId, MessageId | None]
"""(RID, XID or None). A number and 16 bytes are never the same id."""


def flow_of(frame: Frame) -> FlowKey:
    """Return the flow a frame belongs to."""
    return (frame.id, frame.routing_id)


class SeqAssigner:
    """Numbers flow frames per (RID, XID) from 0; other frames get 0. A terminal ends its flow.

    `gate` remembers the last `memory` ended flows, so that a frame that comes after its terminal is suppressed and
    counted instead of sent.
    """

    def __init__(self, memory: int = 1024) -> None:
        self._next: dict[FlowKey, int] = {}
        self._ended: dict[FlowKey, None] = {}
        self._memory = memory
        self.stragglers = 0

    def assign(self, frame: Frame) -> bool:
        """Set `frame.seq`. False if the frame's flow has already ended: do not send it."""
        if frame.frame_type not in FLOW_TYPES:
            frame.seq = 0
            return True
        flow = flow_of(frame)
        if flow in self._ended:
            self.stragglers += 1
            return False
        frame.seq = self._next.get(flow, 0)
        self._next[flow] = frame.seq + 1
        if frame.frame_type in TERMINAL_TYPES:
            self._end(flow)
        return True

    def _end(self, flow: FlowKey) -> None:
        del self._next[flow]
        self._ended[flow] = None
        if len(self._ended) > self._memory:
            del self._ended[next(iter(self._ended))]


class ReorderBuffer:
    """Gives the flow frames of each flow in the order of their seq; frames of other types pass.

    It stands on no live path, where receivers never reorder: it says what `max_reorder_buffer` of the handshake would
    mean, and is held to the vectors.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._expected: dict[FlowKey, int] = {}
        self._held: dict[FlowKey, dict[int, Frame]] = {}

    def accept(self, frame: Frame) -> list[Frame]:
        """Take a frame and return those that are now due.

        Raises RemoteProtocolError for a seq that was seen before ("stale") or one too many to hold ("overflow"); an
        error changes nothing.
        """
        if frame.frame_type not in FLOW_TYPES:
            return [frame]
        flow = flow_of(frame)
        due, held = self._expected.get(flow, 0), self._held.get(flow, {})
        if frame.seq < due or frame.seq in held:
            raise RemoteProtocolError(f"stale: seq {frame.seq} of request {show_id(frame.id)} came before")
        if frame.seq > due:
            if len(held) >= self._limit:
                raise RemoteProtocolError(f"overflow: {len(held)} frames of request {show_id(frame.id)} wait for {due}")
            self._held.setdefault(flow, held)[frame.seq] = frame
            return []
        released = [frame]
        while (due := due + 1) in held:
            released.append(held.pop(due))
        self._expected[flow] = due
        if not held:
            self._held.pop(flow, None)
        return released

    def forget(self, flow: FlowKey) -> None:
        """Drop what is kept of a flow that has ended."""
        self._expected.pop(flow, None)
        self._held.pop(flow, None)
