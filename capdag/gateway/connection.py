"""One HTTP request between Hypercorn and the routes: its id, its reply, its line in the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from quart.wrappers import Request
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest

log = logging.getLogger("capdag.gateway.access")


class Reply:
    """The response of one request, written by its handler while it goes on.

    A handler that has begun one and returns without `finish` aborts it: Hypercorn closes the connection without the
    end of the body, which no client takes for a success.
    """

    def __init__(self, send: ASGISendCallable, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.finished = False

    @property
    def begun(self) -> bool:
        """Whether the status has gone out."""
        return self.status != 0

    async def send(self, message: Any) -> None:
        """Pass a message of the framework on, noting what it says; every response gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            known_as = self.request_id.encode()
            message["headers"] = [*message["headers"], (b"x-request-id", known_as), (b"request-id", known_as)]
        elif not message.get("more_body", False):
            self.finished = True
        await self._send(message)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers."""
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; returns when the socket has taken it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes) -> None:
        """Send the last part and end the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})


class GatewayRequest(TrioRequest):
    """A request, with its reply for routes that stream."""

    reply: Reply

    @property
    def bind(self) -> Mapping[str, Any]:
        """What the listener says of itself: `unix` and `loopback`."""
        scope: Any = self.scope
        state: Mapping[str, Any] = scope.get("state", {})
        return state


class GatewayConnection(TrioASGIHTTPConnection):
    """Serves one request. The handler runs in this task, and is cancelled when the client goes."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        began = time.perf_counter()
        self.reply = Reply(send, f"req_{uuid4().hex}")
        try:
            await super().__call__(receive, self.reply.send)
        finally:
            self._log(time.perf_counter() - began)

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        assert isinstance(request, GatewayRequest)
        request.reply = self.reply
        response = await self.app.handle_request(request)
        if not self.reply.begun:
            await self._send_response(send, response)
        nursery.cancel_scope.cancel()

    def _log(self, seconds: float) -> None:
        """One line, without query string, header or body: none of them belongs in a log. The path is as it came,
        in percent form, so that it cannot forge a line."""
        end = "" if self.reply.finished else " aborted" if self.reply.begun else " client gone"
        path = self.scope["raw_path"].decode("ascii", "replace")[:200]
        log.info(
            "%s %s %s%s %.1f ms %s",
            self.scope["method"], path, self.reply.status or "-", end, seconds * 1000, self.reply.request_id,
        )  # fmt: skip
