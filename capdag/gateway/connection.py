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

from .arrival import Arrival, BodyRoom

log = logging.getLogger("capdag.gateway.access")


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
        room: BodyRoom = self.app.config["BODY_ROOM"]
        arrival = Arrival(room)
        reply = Reply(send, arrival, f"req_{uuid4().hex}")
        request = self._create_request_from_scope(send)
        assert isinstance(request, GatewayRequest)
        request.arrival, request.reply = arrival, reply
        try:
            arrival.expect(request.content_length)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, arrival, receive, nursery.cancel_scope)
                response = await self.app.handle_request(request)
                if not reply.begun:
                    assert isinstance(response, Response)
                    await reply.begin(response.status_code, response.headers.items())
                    await reply.finish(await response.get_data(as_text=False))
                nursery.cancel_scope.cancel()
        finally:
            arrival.release()
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
