"""Unix sockets that carry links (contracts: Links)."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from types import TracebackType

import trio

from capdag.errors import AttributionClass, CapdagError

from .fdlink import FdLink


class SocketError(CapdagError):
    """A socket could not be bound or reached. The text names the path and what to do."""

    code = "MASTER_DIED"
    attribution = AttributionClass.ENVIRONMENT


def socket_link(sock: socket.socket, name: str) -> FdLink:
    """Return a link over a connected socket, which it closes at its end."""
    sock.setblocking(False)
    return FdLink(name, sock.fileno(), sock.fileno(), close_read=sock.close, close_write=sock.close)


def connect_unix(path: Path) -> socket.socket:
    """Connect to a listening unix socket. Raises SocketError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise SocketError(f"cannot connect to {path}: {error.strerror or error}; is the other side running?") from None
    return sock


class UnixListener:
    """A listening unix socket, readable and writable by its owner only; its file goes when the block ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> UnixListener:
        try:
            self._bind()
        except OSError as error:
            self._sock.close()
            raise SocketError(f"cannot listen on {self.path}: {error.strerror or error}") from None
        return self

    def _bind(self) -> None:
        try:
            self._sock.bind(str(self.path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or self._is_served():
                raise
            self.path.unlink()
            self._sock.bind(str(self.path))
        self.path.chmod(0o600)
        self._sock.listen(64)
        self._sock.setblocking(False)

    def _is_served(self) -> bool:
        """True if somebody listens there; a file left by a killed process has no listener."""
        try:
            connect_unix(self.path).close()
        except SocketError:
            return False
        return True

    async def accept(self) -> socket.socket:
        """Wait for the next connection."""
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                continue

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        self.path.unlink(missing_ok=True)
