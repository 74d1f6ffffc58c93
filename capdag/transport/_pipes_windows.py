"""Our ends of a child's pipes on Windows, where a pipe has no non-blocking mode: overlapped named pipes, run by trio.

Not run by the tests of Linux.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import _winapi
    import msvcrt
    import os
    from typing import IO

    import trio

    _READ_SIZE = 65_536

    class PipeStream(trio.abc.Stream):
        """One end of one pipe: it either reads or writes. Raises what every trio stream raises."""

        def __init__(self, handle: int) -> None:
            self._handle: int | None = handle
            trio.lowlevel.register_with_iocp(handle)

        @property
        def closed(self) -> bool:
            """True once it was closed here."""
            return self._handle is None

        def fileno(self) -> int:
            """Return the handle. Raises ClosedResourceError once it is closed."""
            if self._handle is None:
                raise trio.ClosedResourceError("this pipe is closed")
            return self._handle

        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            """Write everything."""
            handle = self.fileno()
            if not data:
                await trio.lowlevel.checkpoint()
                return
            try:
                await trio.lowlevel.write_overlapped(handle, data)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

        async def wait_send_all_might_not_block(self) -> None:
            """Return at once: nothing tells."""
            await trio.lowlevel.checkpoint()

        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            """Read what is there, b"" once the other end is closed."""
            buffer = bytearray(max_bytes or _READ_SIZE)
            try:
                size = await trio.lowlevel.readinto_overlapped(self.fileno(), buffer)
            except BrokenPipeError:  # so Windows says that the other end is closed
                await trio.lowlevel.checkpoint()
                return b""
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            return bytes(memoryview(buffer)[:size])

        def close(self) -> None:
            """Give the handle back, once."""
            handle, self._handle = self._handle, None
            if handle is not None:
                _winapi.CloseHandle(handle)

        async def aclose(self) -> None:
            """Do the same."""
            self.close()
            await trio.lowlevel.checkpoint()

    def open_pipe(*, reads: bool) -> tuple[PipeStream, IO[bytes]]:
        """Open a pipe of which this process reads, or else writes, one end; returns that and the child's end."""
        from asyncio.windows_utils import pipe

        read, write = pipe(overlapped=(reads, not reads))
        own, other = (read, write) if reads else (write, read)
        flags = os.O_BINARY | (os.O_WRONLY if reads else os.O_RDONLY)
        theirs = os.fdopen(msvcrt.open_osfhandle(other, flags), "wb" if reads else "rb", buffering=0)
        return PipeStream(own), theirs
