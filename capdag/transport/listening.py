"""The side of a link that is connected to, and what a stranger may cost it (protocol-spec/links.md, Strangers)."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from .addresses import Address, Scheme
from .bytelink import ByteLink, LinkEnd
from .credentials import Credentials
from .dialling import LinkTimes, Use, hear_first
from .sockets import InUseError, SocketError, UnixListener, stream_link, watch_peer
from .strangers import Strangers, Wrong
from .streamlink import StreamLink
from .tls import in_words, is_about_certificates, shake_hands
from .tokens import PREAMBLE_SIZE, Token
from .websocket import TROUBLE, Carrier, RefusedError, peers_tasks, shake_as_server

MOST_PENDING = 64
"""Connections that have not sent a frame yet, at one address; further ones are closed at once."""

_BACKLOG = 64
_TIRED = 0.2
"""Seconds without accepting after the descriptors ran out."""


class Doorway:
    """One address at which others connect. `serve` takes them in; `strangers` counts who was turned away.

    Raises ConfigError if anybody could come in, or the files of the credentials are no good.
    """

    def __init__(self, address: Address, credentials: Credentials, times: LinkTimes) -> None:
        credentials.check_listening(address)
        self.address = address
        self.strangers = Strangers(str(address))
        self._token = credentials.token
        self._tls = credentials.server_context() if address.is_encrypted else None
        self._times = times
        self._pending = 0
        self._taken = 0

    async def serve(self, use: Use, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, and give every link to `use`, side by side, until cancelled. Reports the address with its port.

        A link is named after the address, with a number. Raises SocketError if nothing can be listened on.
        """
        async with self._listeners() as listeners, trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, use, nursery)
            task_status.started(self.address)

    @asynccontextmanager
    async def _listeners(self) -> AsyncIterator[list[trio.SocketListener]]:
        address = self.address
        if address.scheme is Scheme.UNIX:
            with UnixListener(Path(address.path)) as unix:
                yield [unix.listener]
            return
        try:
            listeners = await trio.open_tcp_listeners(address.port, host=address.host, backlog=_BACKLOG)
        except OSError as error:
            kind = InUseError if error.errno == errno.EADDRINUSE else SocketError
            raise kind(f"cannot listen at {address}: {_remedy(error, address)}") from None
        try:
            self.address = address._replace(port=listeners[0].socket.getsockname()[1])
            yield listeners
        finally:
            for listener in listeners:
                listener.socket.close()

    async def _accept(self, listener: trio.SocketListener, use: Use, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # the process or the system has no descriptor left
                self.strangers.turn_away("somebody", Wrong.DESCRIPTORS, str(error))
                await trio.sleep(_TIRED)
                continue
            if self._pending >= MOST_PENDING:
                self.strangers.turn_away(_peer(stream), Wrong.CROWD)
                stream.socket.close()
                continue
            self._pending += 1
            self._taken += 1
            visit = _Visit(self, f"{self.address}#{self._taken}", stream)
            nursery.start_soon(visit.run, use)

    def came_in(self) -> None:
        """Note that one that was pending is so no more."""
        self._pending -= 1

    async def shake(self, nursery: trio.Nursery, stream: trio.SocketStream, name: str) -> ByteLink:
        """Do all that comes before the first frame. Raises RefusedError, and what the libraries raise."""
        close = stream.socket.close
        if self.address.scheme is Scheme.UNIX:
            return stream_link(stream, name)
        watch_peer(stream.socket, self._times.silence)
        carrier: Carrier = stream
        if self._tls is not None:
            carrier = await shake_hands(stream, self._tls)
        if self.address.is_websocket:
            messages = await shake_as_server(nursery, carrier, self.address, self._token)
            nursery.start_soon(messages.keep_alive, self._times.silence, close)
            return StreamLink(name, messages, close=close)
        if self._token is not None:
            await _ask_token(carrier, self._token)
        return stream_link(stream, name) if carrier is stream else StreamLink(name, carrier, close=close)

    @property
    def times(self) -> LinkTimes:
        """The times that links of this doorway keep."""
        return self._times


class _Visit:
    """One connection, from its first byte to its end."""

    def __init__(self, doorway: Doorway, name: str, stream: trio.SocketStream) -> None:
        self._doorway = doorway
        self._name = name
        self._stream = stream
        self._who = _peer(stream)
        self._is_pending = True
        self._link: ByteLink | None = None

    async def run(self, use: Use) -> None:
        strangers = self._doorway.strangers
        try:
            await self._visit(use)
        except RefusedError as error:
            strangers.turn_away(self._who, error.wrong)
        except TROUBLE as error:
            if self._link is None:
                cause = error.__cause__ or error
                wrong = Wrong.CERTIFICATE if is_about_certificates(cause) else Wrong.HANDSHAKE
                strangers.turn_away(self._who, wrong, in_words(cause))
            else:
                self._link.fail(str(error))
        finally:
            self._come_in()
            self._stream.socket.close()

    async def _visit(self, use: Use) -> None:
        async with peers_tasks() as nursery:
            with trio.move_on_after(self._doorway.times.handshake) as scope:
                self._link = await self._doorway.shake(nursery, self._stream, self._name)
            if scope.cancelled_caught or self._link is None:
                self._doorway.strangers.turn_away(self._who, Wrong.LATE)
                return
            nursery.start_soon(self._hear, self._link)
            await use(self._link)
            self._judge(self._link)

    async def _hear(self, link: ByteLink) -> None:
        await hear_first(link, self._doorway.times)
        self._come_in()

    def _come_in(self) -> None:
        if self._is_pending:
            self._is_pending = False
            self._doorway.came_in()

    def _judge(self, link: ByteLink) -> None:
        if link.heard.is_set() or link.end is LinkEnd.CLOSED:
            return
        wrong = Wrong.SILENT if link.violation is None else Wrong.GARBAGE
        self._doorway.strangers.turn_away(self._who, wrong, link.reason)


async def _ask_token(stream: trio.abc.ReceiveStream, token: Token) -> None:
    preamble = b""
    while len(preamble) < PREAMBLE_SIZE:
        data = await stream.receive_some(PREAMBLE_SIZE - len(preamble))
        if not data:
            break
        preamble += data
    if not token.opens(preamble):
        raise RefusedError(Wrong.TOKEN)


def _peer(stream: trio.SocketStream) -> str:
    try:
        name = stream.socket.getpeername()
    except OSError:  # gone already
        return "somebody"
    if stream.socket.family not in (socket.AF_INET, socket.AF_INET6):
        return "a process of this machine"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def _remedy(error: OSError, address: Address) -> str:
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}; give an address of this machine"
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {address.port} is in use: choose another, or stop the program that has it (ss -ltnp"
                f" 'sport = :{address.port}' names it)"
            )
        case errno.EACCES:
            return "ports below 1024 need privileges; choose another"
        case _:
            return f"{error.strerror or error}; give an address of this machine"
