"""One HTTP request between Hypercorn and the routes: its body, its reply, its line in the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import Any
from uuid import uuid4

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from quart.wrappers import Response
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest

from .errors import ApiError

log = logging.getLogger("capdag.gateway.access")

_LINGER = 2.0
"""Seconds that a client has for sending the rest of a body which has been refused."""


class Arrival:
    """The body of a request as it arrives, held up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._size = 0
        self._usable = trio.Event()
        self._finished = trio.Event()

    def expect(self, announced: int | None) -> None:
        """Note the size that the head announces."""
        if announced is not None and announced > self._limit:
            self._size = announced
            self._usable.set()

    def take(self, data: bytes, more: bool) -> None:
        """Take the next piece. What is over the limit is dropped."""
        if self._size + len(data) <= self._limit:
            self._data += data
        self._size += len(data)
        if not more:
            self._finished.set()
        if not more or self._size > self._limit:
            self._usable.set()

    async def whole(self, deadline: float) -> bytes:
        """Return the whole body. Raises ApiError: 413 over the limit, 408 if it has not come in `deadline` seconds."""
        with trio.move_on_after(deadline):
            await self._usable.wait()
        if self._size > self._limit:
            raise ApiError(
                413,
                "request_too_large",
                f"the body is over {self._limit:,} bytes: send less, or raise body_limit of [gateway]",
            )
        if not self._usable.is_set():
            raise ApiError(
                408, "request_timeout", f"the body did not arrive in {deadline:g} s: send it again", retry=None
            )
        return bytes(self._data)

    @property
    def finished(self) -> bool:
        """Whether the client has sent all."""
        return self._finished.is_set()

    async def finish(self) -> None:
        """Let the client finish sending: closing before resets the connection, and it may lose the reply."""
        with trio.move_on_after(_LINGER):
            await self._finished.wait()


class Reply:
    """The response of one request, written by its handler while it goes on.

    A handler that has begun one and returns without `finish` aborts it: Hypercorn closes the connection without the
    end of the body, which no client takes for a success.
    """

    def __init__(self, send: ASGISendCallable, arrival: Arrival, request_id: str) -> None:
        self._send: Callable[[Any], Awaitable[None]] = send
        self._arrival = arrival
        self.request_id = request_id
        self.status = 0
        self.finished = False

    @property
    def begun(self) -> bool:
        """Whether the status has gone out."""
        return self.status != 0

    async def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send the status and the headers, the request's id among them."""
        self.status = status
        known_as = (("x-request-id", self.request_id), ("request-id", self.request_id))
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in chain(headers, known_as)]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; returns when the socket has taken it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes) -> None:
        """Send the last part and end the body."""
        if not self._arrival.finished:
            await self.write(data)
            await self._arrival.finish()
            data = b""
        self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


class GatewayRequest(TrioRequest):
    """A request, with its body and its reply for the routes that read and write them."""

    arrival: Arrival
    reply: Reply

    @property
    def bind(self) -> Mapping[str, Any]:
        """What the listener says of itself: `unix` and `loopback`."""
        scope: Any = self.scope
        state: Mapping[str, Any] = scope.get("state", {})
        return state


class GatewayConnection(TrioASGIHTTPConnection):
    """Serves one request. Its handler is cancelled when the client goes."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        began = time.perf_counter()
        arrival = Arrival(self.app.config["MAX_CONTENT_LENGTH"])
        reply = Reply(send, arrival, f"req_{uuid4().hex}")
        request = self._create_request_from_scope(send)
        assert isinstance(request, GatewayRequest)
        request.arrival, request.reply = arrival, reply
        arrival.expect(request.content_length)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, arrival, receive, nursery.cancel_scope)
                response = await self.app.handle_request(request)
                if not reply.begun:
                    assert isinstance(response, Response)
                    await reply.begin(response.status_code, response.headers.items())
                    await reply.finish(await response.get_data(as_text=False))
                nursery.cancel_scope.cancel()
        finally:
            self._log(reply, time.perf_counter() - began)

    async def _receive(self, arrival: Arrival, receive: ASGIReceiveCallable, serving: trio.CancelScope) -> None:
        """Take the body, and stop the handler when the client goes."""
        while True:
            message = await receive()
            if message["type"] == "http.request":
                arrival.take(message["body"], message["more_body"])
            elif message["type"] == "http.disconnect":
                serving.cancel()
                return

    def _log(self, reply: Reply, seconds: float) -> None:
        """One line, without query string, header or body: none of them belongs in a log. The path is as it came,
        in percent form, so that it cannot forge a line."""
        end = "" if reply.finished else " aborted" if reply.begun else " client gone"
        path = self.scope["raw_path"].decode("ascii", "replace")[:200]
        log.info(
            "%s %s %s%s %.1f ms %s",
            self.scope["method"], path, reply.status or "-", end, seconds * 1000, reply.request_id,
        )  # fmt: skip
