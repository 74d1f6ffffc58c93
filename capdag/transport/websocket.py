"""WebSocket messages as a byte stream (protocol-spec/links.md, WebSocket)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from trio_websocket import (
    ConnectionClosed,
    HandshakeError,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)
from wsproto.utilities import ProtocolError

from .addresses import Address
from .background import background
from .bytelink import READ_SIZE
from .outbox import StreamOutbox
from .strangers import Wrong
from .tokens import Token

MESSAGE_SIZE = 128 << 10
"""Bytes of one message that this side sends."""

LARGEST_MESSAGE = 1 << 20
"""Bytes of one message that this side takes."""

_ENDS = (1000, 1001, 1005, 1006)
"""Close codes of an end that nobody is to blame for; the last two are of a connection that closed without one."""

TROUBLE = (
    OSError, trio.BrokenResourceError, trio.ClosedResourceError, ConnectionClosed, HandshakeError, ProtocolError,
)  # fmt: skip
"""All that a peer can make trio, TLS and the WebSocket library raise."""


@asynccontextmanager
async def peers_tasks() -> AsyncIterator[trio.Nursery]:
    """Give a nursery for tasks that read what a peer sends, which end with the block.

    Whatever the libraries raise there, be it of `TROUBLE` or not, is the peer's doing: it ends the block as one
    exception of `TROUBLE`. What the block itself raises leaves as it is.
    """
    own: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except Exception as error:
                own = error
                raise
            nursery.cancel_scope.cancel()
    except Exception as error:
        if own is not None:
            raise own from own.__cause__
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TROUBLE):
            raise error from error.__cause__
        raise trio.BrokenResourceError(f"{type(error).__name__}: {error}") from error


Carrier = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class RefusedError(Exception):
    """A peer's opening handshake is refused."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__(wrong)
        self.wrong = wrong


class WebSocketStream(trio.abc.Stream):
    """The binary messages of a connection, whose borders mean nothing. `keep_alive` must run beside."""

    def __init__(self, connection: WebSocketConnection, carried: _Carried) -> None:
        self._connection = connection
        self._carried = carried
        self._heard_at = trio.current_time()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes, in as many messages as they need. Raises BrokenResourceError once the connection is over."""
        try:
            for start in range(0, len(data), MESSAGE_SIZE):
                await self._connection.send_message(bytes(data[start : start + MESSAGE_SIZE]))
                await self._carried.flushed()
        except ConnectionClosed as error:
            raise trio.BrokenResourceError(_describe(error)) from None

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: the connection does not tell."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:  # noqa: ARG002 - the stream's signature
        """Return one message whole, whatever `max_bytes`; empty at the end.

        Raises BrokenResourceError for a text message, one over `LARGEST_MESSAGE`, or a close for a reason.
        """
        while True:
            try:
                message = await self._connection.get_message()
            except ConnectionClosed as error:
                if error.reason is None or error.reason.code in _ENDS:
                    return b""
                raise trio.BrokenResourceError(_describe(error)) from None
            self._heard_at = trio.current_time()
            if isinstance(message, str):
                raise trio.BrokenResourceError("the peer sent a text message, and links are made of binary ones")
            if message:
                return message

    async def aclose(self) -> None:
        """Close the connection with a closing handshake."""
        await self._connection.aclose()

    async def keep_alive(self, silence: float, end: Callable[[], None]) -> None:
        """Ping twice in `silence` seconds; `end()` if for that long after a ping neither pong nor message has come."""
        while True:
            await trio.sleep(silence / 2)
            sent_at = trio.current_time()
            with trio.move_on_after(silence) as scope:
                try:
                    await self._connection.ping()
                except ConnectionClosed:
                    return
            if scope.cancelled_caught and self._heard_at <= sent_at:
                end()
                return


def _describe(error: ConnectionClosed) -> str:
    reason = error.reason
    return "the WebSocket was closed" + (f" with {reason.code} {reason.reason or reason.name}" if reason else "")


class _Carried(trio.abc.Stream):
    """What the library writes to and reads from.

    The library's reader answers pings itself. Were its writes to wait for the peer, two peers that both write much and
    ping each other would both stop reading: so they are queued, and only who sends messages waits (`flushed`). It also
    tells of the stream's end, which leaves the library's opening handshake waiting for ever.
    """

    def __init__(self, stream: Carrier) -> None:
        self._stream = stream
        self._outbox = StreamOutbox(stream)
        self._ended = trio.Event()
        self._trouble: BaseException | None = None

    async def run(self) -> None:
        """Write what is queued until the stream breaks."""
        await self._outbox.run()
        self._ended.set()

    async def flushed(self) -> None:
        """Wait until all is written. Raises BrokenResourceError if it cannot be."""
        await self._outbox.flushed()
        self._check()

    def _check(self) -> None:
        if self._outbox.error is not None:
            raise trio.BrokenResourceError(str(self._outbox.error)) from self._outbox.error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Queue the bytes; waits only behind a flood of answers to pings, which a peer that reads does not cause."""
        while self._outbox.bytes_queued > LARGEST_MESSAGE:
            await self._outbox.flushed()
        self._check()
        self._outbox.append(bytes(data))
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            self._trouble = error.__cause__
            self._ended.set()
            raise
        if not data:
            self._ended.set()
        return data

    async def aclose(self) -> None:
        self._ended.set()
        await self._stream.aclose()

    async def fail_at_end(self) -> None:
        """Wait for the end, and raise BrokenResourceError."""
        await self._ended.wait()
        if self._trouble is None:
            self._check()
        raise trio.BrokenResourceError("the connection was closed") from self._trouble


async def shake_as_client(
    nursery: trio.Nursery, stream: Carrier, address: Address, token: Token | None
) -> WebSocketStream:
    """Open a WebSocket as its client; its tasks run in `nursery`, which a refusal ends with ConnectionRejected.

    Raises BrokenResourceError if the connection ends before.
    """
    carried = _Carried(stream)
    nursery.start_soon(carried.run)
    async with background(carried.fail_at_end):
        connection = await wrap_client_stream(
            nursery,
            carried,  # type: ignore[arg-type]  # any stream will do
            address.authority,
            address.path,
            extra_headers=[] if token is None else [(b"Authorization", token.authorization)],
            max_message_size=LARGEST_MESSAGE,
            receive_buffer_size=READ_SIZE,
        )
    return WebSocketStream(connection, carried)


async def shake_as_server(
    nursery: trio.Nursery, stream: Carrier, address: Address, token: Token | None
) -> WebSocketStream:
    """Take a client in that asks for the address's path and shows the token. Raises RefusedError after its refusal.

    Raises BrokenResourceError if the connection ends before.
    """
    carried = _Carried(stream)
    nursery.start_soon(carried.run)
    async with background(carried.fail_at_end):
        request = await wrap_server_stream(
            nursery, carried, max_message_size=LARGEST_MESSAGE, receive_buffer_size=READ_SIZE
        )
        if request.path != address.path:
            await request.reject(404)
            await carried.flushed()
            raise RefusedError(Wrong.PATH)
        if token is not None and not token.allows(_authorization(request)):
            await request.reject(401, extra_headers=[(b"WWW-Authenticate", b"Bearer")])
            await carried.flushed()
            raise RefusedError(Wrong.TOKEN)
        return WebSocketStream(await request.accept(), carried)


def _authorization(request: WebSocketRequest) -> bytes:
    """Return the Authorization header, empty if there is none or more than one."""
    found = [value for name, value in request.headers if name.lower() == b"authorization"]
    return found[0] if len(found) == 1 else b""
