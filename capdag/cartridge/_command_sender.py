"""An argument of a command on its way to the handler: read as it comes, sent as credit allows. Nothing here waits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from capdag.errors import ConfigError
from capdag.wire import (
    PAYLOAD_HEADROOM,
    Frame,
    FrameType,
    Limits,
    MessageId,
    SendWindow,
    fnv1a_64,
    item_payloads,
    scalar_payloads,
)

from ._command_arguments import STDIN, GivenArgument
from .words import ItemLines

_READ = 65_536
_CHUNK_ROOM = 256
"""Bytes of a CHUNK frame that are not payload, at most."""


class ArgumentSender:
    """One argument stream under its credit."""

    def __init__(self, rid: MessageId, stream_id: str, given: GivenArgument, limits: Limits) -> None:
        self.stream_id = stream_id
        self.ended = False
        self._rid = rid
        self._given = given
        self._window = SendWindow(limits.initial_credit)
        self._max_piece = max(1, min(limits.max_chunk, limits.max_frame - PAYLOAD_HEADROOM - _CHUNK_ROOM))
        self._fd = given.fd
        self._lines = ItemLines(given.media_urn)
        self._chunks = 0
        self._payloads: deque[bytes] = deque()
        self._add(given.values)

    def start(self) -> Frame:
        """Return the STREAM_START."""
        return self._frame(FrameType.STREAM_START, media_urn=self._given.media_urn, is_sequence=self._given.is_sequence)

    @property
    def wanted_fd(self) -> int | None:
        """The descriptor to read from once it has something; None while nothing could be sent, or all was read."""
        return self._fd if not self._payloads and self._window.remaining else None

    def read(self) -> None:
        """Read once. Raises ConfigError for what cannot be read, or is no line of JSON where one belongs."""
        assert self._fd is not None
        try:
            data = os.read(self._fd, _READ)
        except OSError as error:
            raise ConfigError(f"cannot read {self._given.media_urn}: {error.strerror}") from None
        if not data:
            self._close()
        if self._given.is_sequence:
            self._add(self._lines.feed(data))
        else:
            self._add([data])

    def grant(self, credit: int) -> None:
        """Take a grant of the handler's."""
        self._window.grant(credit)

    def frames(self) -> Iterator[Frame]:
        """Yield what can be sent now; STREAM_END once everything has been."""
        while self._payloads and self._window.take():
            payload = self._payloads.popleft()
            yield self._frame(FrameType.CHUNK, payload=payload, chunk_index=self._chunks, checksum=fnv1a_64(payload))
            self._chunks += 1
        if not self._payloads and self._fd is None and not self.ended:
            self.ended = True
            yield self._frame(FrameType.STREAM_END, chunk_count=self._chunks)

    def _close(self) -> None:
        if self._fd is not None and self._fd != STDIN:
            os.close(self._fd)
        self._fd = None

    def _add(self, values: Iterable[Any]) -> None:
        make = item_payloads if self._given.is_sequence else scalar_payloads
        for value in values:
            self._payloads.extend(make(value, self._max_piece))

    def _frame(self, kind: FrameType, **fields: Any) -> Frame:
        return Frame(kind, self._rid, stream_id=self.stream_id, **fields)
