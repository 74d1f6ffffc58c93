"""The side of a link that connects (protocol-spec/links.md)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import trio
from trio_websocket import ConnectionRejected

from capdag.errors import ConfigError

from .addresses import Address, Scheme
from .bytelink import ByteLink, LinkEnd
from .credentials import Credentials
from .sockets import SocketError, connect_unix, stream_link, watch_peer
from .streamlink import StreamLink
from .tls import REFUSED, TlsContext, in_words, shake_hands
from .websocket import TROUBLE, Carrier, peers_tasks, shake_as_client

Use = Callable[[ByteLink], Awaitable[None]]
"""What is done with a link while it is open: it runs the link to its end and raises nothing."""


class RefusedLinkError(SocketError):
    """Somebody is there, but no link came about: it will not by itself.

    `kind` is the same for errors that differ only in what the other side has sent.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class LinkTimes(NamedTuple):
    """Seconds: `handshake` for all before a link's first frame, and that frame; `silence` that a peer may keep."""

    handshake: float = 10.0
    silence: float = 20.0


async def dial(address: Address, credentials: Credentials, times: LinkTimes, use: Use) -> None:
    """Connect to `address` and give the link, named after it, to `use`; return when that has.

    Raises SocketError if there is no link, RefusedLinkError if that, or that no frame came in time, is the other side's
    doing. Cancellation closes the link.
    """
    with trio.move_on_after(times.handshake) as scope:
        stream = await _connect(address)
    if scope.cancelled_caught:
        raise SocketError(f"cannot reach {address}: no answer in {times.handshake:g} s; does a firewall drop it?")
    try:
        await _Attempt(address, credentials, times, stream).run(use)
    finally:
        stream.socket.close()


class _Attempt:
    """One connection, from its first byte to its end."""

    def __init__(self, address: Address, credentials: Credentials, times: LinkTimes, stream: trio.SocketStream) -> None:
        self._address = address
        self._credentials = credentials
        self._times = times
        self._stream = stream
        self._link: ByteLink | None = None

    async def run(self, use: Use) -> None:
        try:
            await self._open(use)
        except TROUBLE as error:
            if self._link is None:
                raise RefusedLinkError(f"{self._address} {_refusal(error)}", _kind(error)) from None
            self._link.fail(str(error))
        link = self._link
        if link is not None and not link.heard.is_set() and link.end is not LinkEnd.CLOSED:
            raise _silent(self._address, link)

    async def _open(self, use: Use) -> None:
        async with peers_tasks() as nursery:
            with trio.move_on_after(self._times.handshake):
                self._link = await self._shake(nursery)
            if self._link is None:
                limit = f"{self._times.handshake:g} s"
                raise RefusedLinkError(f"{self._address} did not answer the opening handshake in {limit}", "late")
            nursery.start_soon(hear_first, self._link, self._times)
            await use(self._link)

    async def _shake(self, nursery: trio.Nursery) -> ByteLink:
        """Do all that comes before the first frame."""
        address, token, stream = self._address, self._credentials.token, self._stream
        name, close = str(address), stream.socket.close
        if address.scheme is Scheme.UNIX:
            return stream_link(stream, name)
        watch_peer(stream.socket, self._times.silence)
        carrier: Carrier = stream
        if address.is_encrypted:
            carrier = await shake_hands(stream, self._context(), address.host)
        if address.is_websocket:
            messages = await shake_as_client(nursery, carrier, address, token)
            nursery.start_soon(messages.keep_alive, self._times.silence, close)
            return StreamLink(name, messages, close=close)
        if token is not None:
            await carrier.send_all(token.preamble)
        return stream_link(stream, name) if carrier is stream else StreamLink(name, carrier, close=close)

    def _context(self) -> TlsContext:
        """Return the TLS settings by the files as they are now: they may have been renewed, or be so just now."""
        try:
            return self._credentials.client_context()
        except ConfigError as error:
            raise SocketError(f"cannot connect to {self._address}: {error}") from None


_REFUSALS = {401: "the token is not the one that it knows", 404: "it has another path"}

_SILENT = "it may serve another already, want a token or not know this one, or speak another protocol"


async def _connect(address: Address) -> trio.SocketStream:
    if address.scheme is Scheme.UNIX:
        return trio.SocketStream(trio.socket.from_stdlib_socket(connect_unix(Path(address.path))))
    try:
        return await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        cause: BaseException | None = error.__cause__
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        raise SocketError(f"cannot reach {address}: {_short(cause or error)}; is the other side running?") from None


def _short(error: BaseException) -> str:
    """Return the system's words for an error, without the address that trio puts before them."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error)


def _refusal(error: BaseException) -> str:
    """Say what came in place of a link, in words that follow the address."""
    if isinstance(error, ConnectionRejected):
        return f"refused the link: {_REFUSALS.get(error.status_code, f'HTTP status {error.status_code}')}"
    why = in_words(error.__cause__ or error)
    return f"sent no frame: {why}" if REFUSED in why else f"ended the opening handshake: {why}"


def _kind(error: BaseException) -> str:
    """Return what kind of error ended the opening handshake, without what the other side has sent."""
    cause = error.__cause__ or error
    if isinstance(error, ConnectionRejected):
        return f"HTTP status {error.status_code}"
    return in_words(cause) if isinstance(cause, OSError) else type(cause).__name__


def _silent(address: Address, link: ByteLink) -> RefusedLinkError:
    if REFUSED in link.reason:
        return RefusedLinkError(f"{address} sent no frame: {link.reason}", link.reason)
    return RefusedLinkError(f"{address} sent no frame ({link.reason}): {_SILENT}", str(link.end))


async def hear_first(link: ByteLink, times: LinkTimes) -> None:
    """Wait for the first frame of a link, and end it if none comes in time."""
    with trio.move_on_after(times.handshake):
        await link.heard.wait()
        return
    link.fail(f"no frame came in {times.handshake:g} s")
