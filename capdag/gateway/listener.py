"""Where HTTP listens, and connections that a client who stops reading cannot hold."""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import trio

from capdag.errors import AttributionClass, CapdagError
from capdag.transport.sockets import UnixListener

_BACKLOG = 1024
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class TcpBind(NamedTuple):
    """A host name or address, and a port; port 0 takes a free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class UnixBind(NamedTuple):
    """The path of a unix socket, for this user only. The admin routes answer here and nowhere else."""

    path: Path


Bind = TcpBind | UnixBind


class BindError(CapdagError):
    """An address cannot be listened on. The text names it and the remedy."""

    code = "INVALID_REQUEST"
    attribution = AttributionClass.INPUT


class PortInUseError(BindError):
    """Somebody else listens on the port."""


class HttpStream(trio.abc.HalfCloseableStream):
    """A connected socket with a write deadline: no progress for so long ends the connection.

    Hypercorn shields its writes from cancellation, so without one a client that stops reading would hold its
    request, and the shutdown, for ever. A write is tried at once and only what the socket does not take waits.
    """

    def __init__(self, sock: socket.socket, write_deadline: float) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self._write_deadline = write_deadline

    def send_now(self, data: bytes) -> bytes:
        """Send what the socket takes without waiting; return the rest, to be given to `send_all`."""
        try:
            return data[self.socket.send(data) :] if data else b""
        except OSError:  # full, or broken: `send_all` tells which
            return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything. Raises BrokenResourceError when the client is gone or the deadline has passed."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                await self.wait_send_all_might_not_block()
            except OSError as error:
                raise self._broken(error) from None

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the socket takes bytes. Raises BrokenResourceError at the write deadline."""
        self._check_open()
        with trio.move_on_after(self._write_deadline) as scope:
            await trio.lowlevel.wait_writable(self.socket)
        if scope.cancelled_caught:
            self.abort()
            raise trio.BrokenResourceError(f"the client took nothing for {self._write_deadline:g} s")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes; empty at the end. Raises BrokenResourceError when the client is gone."""
        while True:
            self._check_open()
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return self.socket.recv(max_bytes or 65_536)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken(error) from None

    async def send_eof(self) -> None:
        """Tell the client that nothing more comes."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._broken(error) from None

    async def aclose(self) -> None:
        """Close; what was sent is still delivered."""
        self._close()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """Close at once and drop what is on the way. A write under way raises ClosedResourceError."""
        if self.socket.fileno() >= 0:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            self._close()

    def _close(self) -> None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def _check_open(self) -> None:
        if self.socket.fileno() < 0:
            raise trio.ClosedResourceError("the connection was closed on this side")

    def _broken(self, error: OSError) -> trio.BrokenResourceError:
        self._check_open()
        return trio.BrokenResourceError(f"the client is gone: {error.strerror}")


class HttpListener(trio.abc.Listener[HttpStream]):
    """Accepts connections of one bind. `address` is as people write it: http://127.0.0.1:8080, or unix:PATH."""

    bind: Bind
    address: str


class _TcpListener(HttpListener):
    def __init__(self, bind: TcpBind, source: trio.SocketListener, write_deadline: float) -> None:
        host, port = source.socket.getsockname()[:2]
        self.bind = bind
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._source = source
        self._write_deadline = write_deadline

    async def accept(self) -> HttpStream:
        stream = await self._source.accept()
        return HttpStream(socket.socket(fileno=stream.socket.detach()), self._write_deadline)

    async def aclose(self) -> None:
        await self._source.aclose()


class _UnixListener(HttpListener):
    def __init__(self, bind: UnixBind, write_deadline: float) -> None:
        self.bind = bind
        self.address = f"unix:{bind.path}"
        self._closing = ExitStack()
        self._source = self._closing.enter_context(UnixListener(bind.path))
        self._write_deadline = write_deadline

    async def accept(self) -> HttpStream:
        return HttpStream(await self._source.accept(), self._write_deadline)

    async def aclose(self) -> None:
        self._closing.close()
        await trio.lowlevel.checkpoint()


async def open_listeners(bind: Bind, write_deadline: float) -> list[HttpListener]:
    """Listen on every address that `bind` names. Raises PortInUseError, BindError or SocketError."""
    if isinstance(bind, UnixBind):
        return [_UnixListener(bind, write_deadline)]
    try:
        sources = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=_BACKLOG)
    except OSError as error:
        raise _bind_error(bind, error) from None
    return [_TcpListener(bind, source, write_deadline) for source in sources]


def _bind_error(bind: TcpBind, error: OSError) -> BindError:
    where = f"port {bind.port} of {bind.host}"
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"{where} is in use: choose another with --port (0 takes a free one), or stop the program that has it "
            f"(ss -ltnp 'sport = :{bind.port}' names it)"
        )
    if error.errno == errno.EACCES:
        return BindError(f"{where} is not allowed for this user: ports below 1024 need privileges; choose another")
    return BindError(f"cannot listen on {where}: {error.strerror or error}; give an address of this machine")
