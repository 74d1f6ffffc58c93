"""A link over a trio stream: TLS, a WebSocket, or a stream in memory (contracts: Links)."""

from __future__ import annotations

from collections.abc import Callable

import trio

from capdag.wire import DEFAULT_LIMITS, Limits

from .bytelink import ByteLink, LinkEnd
from .outbox import StreamOutbox
from .tls import in_words

_LAST_READS = 0.5
"""Seconds that the reader has after a write has failed, if it does not end by itself."""


class StreamLink(ByteLink):
    """Frames over a stream, one task reading and one writing.

    `close` ends what the stream stands on, without awaiting: a writer that was cancelled in mid-frame must not leave it
    open. Whoever made the stream sees to its orderly end.
    """

    def __init__(
        self, name: str, stream: trio.abc.Stream, *, close: Callable[[], None], limits: Limits = DEFAULT_LIMITS
    ) -> None:
        super().__init__(name, StreamOutbox(stream), limits)
        self._stream = stream
        self._close_stream = close
        self._read_all = trio.Event()

    def _close(self) -> None:
        self._close_stream()

    async def _write(self) -> None:
        await self._outbox.run()
        # The far end stopped reading; what it wrote before that still counts, and the reader comes to its end.
        await trio.sleep(_LAST_READS)
        self._finish(LinkEnd.BROKEN, f"writing failed: {self._outbox.error}")

    async def read_rest(self) -> None:
        """Wait until the reader has come to the end, and not for long."""
        with trio.move_on_after(_LAST_READS):
            await self._read_all.wait()

    async def _read(self) -> None:
        try:
            await self._read_frames()
        finally:
            self._read_all.set()

    async def _read_frames(self) -> None:
        while self._end is None:
            try:
                data = await self._stream.receive_some(self.read_size)
            except trio.BrokenResourceError as error:
                self._finish(LinkEnd.BROKEN, f"reading failed: {in_words(error.__cause__ or error)}")
                return
            if data:
                self._take(bytes(data))
            else:
                self._take_eof()
