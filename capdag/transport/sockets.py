"""Sockets that carry links: unix sockets, and what makes a TCP connection notice that its peer has vanished."""

from __future__ import annotations

import errno
import socket
import stat
import sys
from pathlib import Path
from types import TracebackType

import trio

from capdag.errors import AttributionClass, CapdagError
from capdag.folders import others_may_replace

from .bytelink import ByteLink
from .fdlink import FdLink
from .streamlink import StreamLink


class SocketError(CapdagError):
    """A socket could not be bound or reached. The text names the path or address and what to do."""

    code = "MASTER_DIED"
    attribution = AttributionClass.ENVIRONMENT


class InUseError(SocketError):
    """Somebody else listens at the address."""


def socket_link(sock: socket.socket, name: str) -> FdLink:
    """Return a link over a connected socket, which it closes at its end."""
    sock.setblocking(False)
    return FdLink(name, sock.fileno(), sock.fileno(), close_read=sock.close, close_write=sock.close)


def stream_link(stream: trio.SocketStream, name: str) -> ByteLink:
    """Return a link over the socket of a stream, which is used for nothing else from here on."""
    fd, close = stream.socket.fileno(), stream.socket.close
    if sys.platform == "win32":  # where a socket is no descriptor
        return StreamLink(name, stream, close=close)
    else:  # noqa: RET505 - type checkers know which branch is for which system
        return FdLink(name, fd, fd, close_read=close, close_write=close)


def watch_peer(sock: trio.socket.SocketType, silence: float) -> None:
    """Have the system end a TCP connection whose peer has answered nothing for `silence` seconds, and send at once.

    Idle or not: probes begin after half of that time. A peer that answers but reads nothing for so long, with its
    window full, counts as vanished too (Linux). protocol-spec/links.md, Silence.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(silence / 2)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(silence / 6)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silence * 1000))


def unix_socket(path: Path) -> socket.socket:
    """Make a unix socket, for `path`. Raises SocketError where the system has none."""
    if sys.platform == "win32":
        raise SocketError(f"unix:{path}: there are no unix sockets on Windows; use tcp:127.0.0.1:PORT")
    else:  # noqa: RET506 - type checkers know which branch is for which system
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def connect_unix(path: Path) -> socket.socket:
    """Connect to a listening unix socket, without waiting. Raises SocketError."""
    sock = unix_socket(path)
    sock.setblocking(False)
    try:
        sock.connect(str(path))
    except BlockingIOError:
        sock.close()
        raise SocketError(f"cannot connect to {path}: too many others wait there; try again") from None
    except OSError as error:
        sock.close()
        raise SocketError(f"cannot connect to {path}: {error.strerror or error}; is the other side running?") from None
    return sock


class UnixListener:
    """A listening unix socket, readable and writable by its owner only; its file goes when the block ends.

    Its folder must be one where nobody else can put another socket in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = unix_socket(path)

    def __enter__(self) -> UnixListener:
        try:
            _check_folder(self.path)
            self._bind()
        except OSError as error:
            self._sock.close()
            if error.errno == errno.EADDRINUSE:
                raise InUseError(f"cannot listen on {self.path}: {_IN_USE}") from None
            raise SocketError(f"cannot listen on {self.path}: {error.strerror or error}") from None
        except SocketError:
            self._sock.close()
            raise
        return self

    def _bind(self) -> None:
        try:
            self._sock.bind(str(self.path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not stat.S_ISSOCK(self.path.lstat().st_mode) or self._is_served():
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

    @property
    def listener(self) -> trio.SocketListener:
        """The same socket as a trio listener, which must not be closed."""
        return trio.SocketListener(trio.socket.from_stdlib_socket(self._sock))

    async def accept(self) -> socket.socket:
        """Wait for the next connection. Raises OSError where the process or the system has no descriptor left."""
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


_IN_USE = "it is in use: another process listens there, or a file has that name; choose another path"


def _check_folder(path: Path) -> None:
    """Raise SocketError for a folder in which another user may replace a socket."""
    if others_may_replace(path.absolute().parent):
        raise SocketError(
            f"cannot listen on {path}: others may write to its folder, and so take over the socket; use a folder of"
            " this user's own with mode 0700, such as $XDG_RUNTIME_DIR"
        )
