"""seq: numbering what we send, watching what comes (protocol-spec/wire.md, seq)."""

from __future__ import annotations

from .frame import FLOW_TYPES, TERMINAL_TYPES, Frame, MessageId

FlowKey = tuple[MessageId, MessageId | None]
"""(RID, XID or None)."""


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
        flow = (frame.id, frame.routing_id)
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
