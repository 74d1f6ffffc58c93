"""The length prefix: a byte stream cut into frame bodies (protocol-spec/wire.md, Framing)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from capdag.errors import LocalProtocolError, RemoteProtocolError

from .limits import DEFAULT_LIMITS, HARD_MAX_FRAME
from .view import FrameView

_PREFIX = Struct(">I")
PREFIX_SIZE = 4
_SHOWN = 64


class FrameSplitter:
    """Collects bytes and gives whole bodies. Memory: at most one frame of `max_frame` bytes and one read.

    `offset` counts the bytes of the stream up to the frame being read, for error messages.
    """

    def __init__(self, max_frame: int = DEFAULT_LIMITS.max_frame) -> None:
        self.max_frame = min(max_frame, HARD_MAX_FRAME)
        self.offset = 0
        self._held = bytearray()
        self._needed = PREFIX_SIZE

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the bytes of one read and yield the bodies that are now whole. To be consumed to its end.

        Raises RemoteProtocolError, after the good bodies before it, for a length of 0 or over the limit, naming the
        stream offset and the first bytes.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        position, end = 0, len(data)
        self._needed = PREFIX_SIZE
        while end - position >= PREFIX_SIZE:
            (size,) = _PREFIX.unpack_from(data, position)
            if size == 0 or size > self.max_frame:
                raise self._bad_length(size, data[position : position + _SHOWN])
            if end - position - PREFIX_SIZE < size:
                self._needed = PREFIX_SIZE + size
                break
            position += PREFIX_SIZE
            yield data[position : position + size]
            position += size
            self.offset += PREFIX_SIZE + size
        if position < end:
            self._held += data[position:]

    def _bad_length(self, size: int, shown: bytes) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"frame length {size} at stream offset {self.offset} is not within 1..{self.max_frame}; "
            f"the bytes there are {shown!r}"
        )

    def eof(self) -> None:
        """Check a stream that ended: raises RemoteProtocolError if it ended inside a frame."""
        if self._held:
            raise RemoteProtocolError(
                f"the stream ended inside a frame at offset {self.offset}: {len(self._held)} of "
                f"{self._needed} bytes came, beginning {bytes(self._held[:_SHOWN])!r}"
            )


def pack(view: FrameView, max_frame: int) -> bytes:
    """Return prefix and body. Raises LocalProtocolError for a body over the link's max_frame."""
    size = len(view.body)
    if size > max_frame:
        raise LocalProtocolError(f"{view.type.name} of {size} bytes is over the link's max_frame of {max_frame}")
    return _PREFIX.pack(size) + view.body
