"""What goes into a CHUNK and how it is encoded, at the rate of tokens (protocol-spec/wire.md, Values)."""

from __future__ import annotations

from struct import Struct

from cbor2 import dumps

from capdag.errors import LocalProtocolError
from capdag.wire import PROTOCOL_VERSION, FrameType, MessageId
from capdag.wire.heads import head_of

COALESCE_BYTES = 4096
"""Bytes written to a scalar stream are held until there are this many."""

COALESCE_SECONDS = 0.020
"""Or until, at the next write, the oldest of them has waited this long. There is no timer."""

Bytes = bytes | bytearray | memoryview

_PREFIX = Struct(">I")


class Coalescer:
    """Joins small writes of bytes. The clock is the caller's."""

    __slots__ = ("_held", "_since")

    def __init__(self) -> None:
        self._held = bytearray()
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, data: Bytes, now: float) -> Bytes:
        """Take written bytes; return everything held if it is due (4096 bytes, or 20 ms old), else nothing."""
        if not self._held:
            if memoryview(data).nbytes >= COALESCE_BYTES:
                return data  # uncopied
            self._since = now
        self._held += data
        due = len(self._held) >= COALESCE_BYTES or now - self._since >= COALESCE_SECONDS
        return self.take() if due else b""

    def take(self) -> bytes:
        """Return everything held."""
        held = bytes(self._held)
        self._held.clear()
        return held


class ChunkEncoder:
    """Encodes the CHUNKs of one stream that have no meta: the bytes of `pack(view_of(frame))`, with the parts that
    never change made once. A `Frame` and its checks cost as much as everything else a token needs."""

    __slots__ = ("_fixed", "_head", "_max_frame", "_tail")

    def __init__(self, rid: MessageId, stream_id: str, xid: MessageId | None, max_frame: int) -> None:
        self._max_frame = max_frame
        chunk, version = dumps(int(FrameType.CHUNK)), dumps(PROTOCOL_VERSION)
        entries = b"\xa8" if xid is None else b"\xa9"
        routing = b"" if xid is None else b"\x0d" + dumps(xid)
        self._head = entries + b"\x00" + version + b"\x01" + chunk + b"\x02" + dumps(rid) + b"\x03"
        self._tail = b"\x0b" + dumps(stream_id) + routing + b"\x0e"
        self._fixed = len(self._head) + 1 + len(self._tail)

    def encode(self, seq: int, index: int, payload: bytes, checksum: int) -> bytes:
        """Return one frame with its length prefix. Raises LocalProtocolError for one over max_frame."""
        first, second = dumps(seq), head_of(0x40, len(payload))
        third = dumps(index) + b"\x10" + dumps(checksum)
        size = self._fixed + len(first) + len(second) + len(payload) + len(third)
        if size > self._max_frame:
            raise LocalProtocolError(
                f"CHUNK of {size} bytes is over the link's max_frame of {self._max_frame}: write smaller elements"
            )
        return b"".join((_PREFIX.pack(size), self._head, first, b"\x06", second, payload, self._tail, third))
