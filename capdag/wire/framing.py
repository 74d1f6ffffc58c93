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

_SMALL = 1024
"""Bytes of a read that is joined to the one before it: by itself it would take more memory than it holds."""


class FrameSplitter:
    """Collects bytes and gives whole bodies. Memory: at most one frame of `max_frame` bytes and one read.

    `data` and `position`: what was taken, and how far it has been cut. `size` and `missing`: bytes of the body being
    read, and of those that have not come yet; 0 while its length is not known. `parts`: what has come of a body in more
    than one read. `offset` counts the bytes of the stream up to that frame, for error messages.
    """

    def __init__(self, max_frame: int = DEFAULT_LIMITS.max_frame) -> None:
        self.max_frame = min(max_frame, HARD_MAX_FRAME)
        self.data = b""
        self.position = 0
        self.missing = 0
        self.offset = 0
        self.size = 0
        self.parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the bytes of one read and yield the bodies that are now whole. To be consumed to its end.

        Raises RemoteProtocolError, after the good bodies before it, for a length of 0 or over the limit, naming the
        stream offset and the first bytes.
        """
        self.take(data)
        while (body := self.next()) is not None:
            yield body

    def take(self, data: bytes) -> None:
        """Take the bytes of one read, once `next` has given all that there was."""
        if self.missing:
            if len(self.parts[-1]) < _SMALL and len(data) < _SMALL:
                self.parts[-1] += data
            else:
                self.parts.append(data)
            self.missing = max(0, self.missing - len(data))
        else:
            self.data = self.data[self.position :] + data
            self.position = 0

    def next(self) -> bytes | None:
        """Return the next whole body, or None until more is taken. Raises RemoteProtocolError as `feed` does."""
        if self.parts and not self.missing:
            # A body that ends with the last part is not copied again.
            self.data, self.position = b"".join(self.parts), 0
            self.parts.clear()
        data, position, size = self.data, self.position, self.size
        if not size:
            if len(data) - position < PREFIX_SIZE:
                return None
            (size,) = _PREFIX.unpack_from(data, position)
            if size == 0 or size > self.max_frame:
                raise self._bad_length(size, data[position : position + _SHOWN])
            position += PREFIX_SIZE
        end = position + size
        if end > len(data):
            if not self.missing:
                self.size, self.missing = size, end - len(data)
                self.parts.append(data[position:])
                self.data, self.position = b"", 0
            return None
        self.size, self.position = 0, end
        self.offset += PREFIX_SIZE + size
        return data[position:end]

    def end_parts(self) -> None:
        """Go on behind a body whose `parts` were taken as they are."""
        self.offset += PREFIX_SIZE + self.size
        self.size = 0
        self.parts.clear()

    def _bad_length(self, size: int, shown: bytes) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"frame length {size} at stream offset {self.offset} is not within 1..{self.max_frame}; "
            f"the bytes there are {shown!r}"
        )

    def eof(self) -> None:
        """Check a stream that ended: raises RemoteProtocolError if it ended inside a frame."""
        needed = PREFIX_SIZE + self.size
        begun = b"".join(self.parts) if self.missing else self.data[self.position :]
        if self.missing:
            begun = _PREFIX.pack(self.size) + begun
        if begun:
            raise RemoteProtocolError(
                f"the stream ended inside a frame at offset {self.offset}: {len(begun)} of "
                f"{needed} bytes came, beginning {begun[:_SHOWN]!r}"
            )


def pack(view: FrameView, max_frame: int) -> bytes:
    """Return prefix and body. Raises LocalProtocolError for a body over the link's max_frame."""
    return prefix(view, max_frame) + view.body


def prefix(view: FrameView, max_frame: int) -> bytes:
    """Return the prefix of a frame. Raises LocalProtocolError for a body over the link's max_frame."""
    size = len(view.body)
    if size > max_frame:
        raise LocalProtocolError(f"{view.type.name} of {size} bytes is over the link's max_frame of {max_frame}")
    return _PREFIX.pack(size)
