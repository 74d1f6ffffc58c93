"""What goes into a CHUNK and how it is encoded, at the rate of tokens (protocol-spec/wire.md, Values)."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

from cbor2 import dumps

from capdag.errors import LocalProtocolError
from capdag.wire import PROTOCOL_VERSION, FrameType, MessageId

COALESCE_BYTES = 4096
"""Bytes written to a scalar stream are held until there are this many."""

COALESCE_SECONDS = 0.020
"""Or until, at the next write, the oldest of them has waited this long. There is no timer."""

_PREFIX = Struct(">I")


class Coalescer:
    """Joins small writes of bytes. The clock is the caller's."""

    __slots__ = ("_held", "_since")

    def __init__(self) -> None:
        self._held = bytearray()
        self._since = 0.0

    def add(self, data: bytes | bytearray | memoryview, now: float) -> bytes:
        """Take written bytes; return everything held if it is due (4096 bytes, or 20 ms old), else nothing."""
        if not self._held:
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
    """Encodes the CHUNKs of one stream: the bytes of `pack(view_of(frame))` with the parts that never change made
    once. A `Frame` and its checks would cost as much again as everything else a token needs."""

    __slots__ = ("_entries", "_head", "_max_frame", "_tail")

    def __init__(self, rid: MessageId, stream_id: str, xid: MessageId | None, max_frame: int) -> None:
        self._max_frame = max_frame
        self._entries = 0xA8 if xid is None else 0xA9
        self._head = b"\x00" + dumps(PROTOCOL_VERSION) + b"\x01" + dumps(int(FrameType.CHUNK)) + b"\x02" + dumps(rid)
        self._head += b"\x03"
        self._tail = b"\x0b" + dumps(stream_id) + (b"" if xid is None else b"\x0d" + dumps(xid)) + b"\x0e"

    def encode(self, seq: int, index: int, payload: bytes, checksum: int, meta: Mapping[str, Any] | None) -> bytes:
        """Return one frame with its length prefix. Raises LocalProtocolError for one over max_frame."""
        extra = b"" if meta is None else b"\x05" + dumps(meta)
        body = b"".join(
            (
                bytes((self._entries + (meta is not None),)),
                self._head, dumps(seq),
                extra,
                b"\x06", dumps(payload),
                self._tail, dumps(index),
                b"\x10", dumps(checksum),
            )
        )  # fmt: skip
        if len(body) > self._max_frame:
            raise LocalProtocolError(
                f"CHUNK of {len(body)} bytes is over the link's max_frame of {self._max_frame}: "
                f"write smaller elements, or items with less meta"
            )
        return _PREFIX.pack(len(body)) + body
