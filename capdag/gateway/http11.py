"""Hypercorn's HTTP/1.1 connection as this gateway runs it: no upgrades, writes at once, errors in one form."""

from __future__ import annotations

from uuid import uuid4

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from .arrival import BodyRoom
from .errors import ApiError
from .listener import HttpStream


class Http11Connection(TCPServer):
    """One connection, to its end. What the client does wrong ends it; nothing is raised for it."""

    stream: HttpStream  # type: ignore[assignment]
    protocol: _Http11  # type: ignore[assignment]

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ConnectionState,
        stream: HttpStream,
        body_room: BodyRoom,
    ) -> None:
        # The annotation names TLS streams; without TLS no more is asked of a stream than ours has.
        super().__init__(app, config, context, state, stream)  # type: ignore[arg-type]
        self._body_room = body_room

    async def run(self) -> None:
        """Serve the connection."""
        try:
            client = parse_socket_addr(self.stream.socket.family, self.stream.socket.getpeername())
            server = parse_socket_addr(self.stream.socket.family, self.stream.socket.getsockname())
            async with TaskGroup() as tasks:
                self._task_group = tasks
                self.protocol = _Http11(
                    self.app, self.config, self.context, tasks, ConnectionState(self.state), False, client, server,
                    self.protocol_send,
                )  # fmt: skip
                self.protocol.body_room = self._body_room
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass  # the client left before its address was asked for
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        """Try to write at once: Hypercorn's own way, through a lock and a shielded scope, costs every token passes of
        the scheduler."""
        if not isinstance(event, RawData) or self.send_lock.locked():
            await super().protocol_send(event)
        elif rest := self.stream.send_now(event.data):
            # A part has gone out: stopping here would leave a torn chunk in front of whatever is written next.
            with trio.CancelScope(shield=True):
                await super().protocol_send(RawData(rest))


class _Http11(H11Protocol):
    """Offers of HTTP/2 and WebSockets are passed over, as HTTP allows: they would go around what guards HTTP/1.1,
    the check of the Host header and the abort that marks a broken stream."""

    body_room: BodyRoom
    """Whether a body has room: else its client is not told to go on with it."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Take the request for what it is."""

    async def _create_stream(self, request: h11.Request) -> None:
        framing = {name: value for name, value in request.headers if name in (b"content-length", b"transfer-encoding")}
        if len(framing) == 2:
            # Who stands in front of us may go by the other one, and see other requests than we do.
            await self._refuse(_invalid(400, "it has both Content-Length and Transfer-Encoding: send one of them"))
            await self.send(Closed())
            return
        if self.body_room.refusal(int(framing.get(b"content-length", 0))) is not None:
            # The application will say that it has no room, and that is to come in place of 100 Continue.
            assert isinstance(self.connection, h11.Connection)
            self.connection.client_is_waiting_for_100_continue = False
        kept = [(name, value) for name, value in request.headers if name != b"upgrade"]
        plain = h11.Request(
            method=request.method, headers=kept, target=request.target, http_version=request.http_version
        )
        await super()._create_stream(plain)

    async def _send_error_response(self, status_code: int) -> None:
        """Tell the client that what it sent is not HTTP."""
        await self._refuse(_invalid(status_code, "see its head and framing"))

    async def _refuse(self, error: ApiError) -> None:
        body, headers = error.render()
        headers |= {"content-length": str(len(body)), "connection": "close", "x-request-id": f"req_{uuid4().hex}"}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send_h11_event(
            h11.Response(status_code=error.status, headers=encoded + self.config.response_headers("h11"))
        )
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _invalid(status: int, why: str) -> ApiError:
    return ApiError(status, "invalid_http", f"this is not a valid HTTP/1.1 request: {why}")
