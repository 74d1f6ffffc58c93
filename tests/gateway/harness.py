"""A gateway on a real port, in front of the real client and switch, and clients that see every byte."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h11
import trio

from capdag.client import Client
from capdag.gateway import Admin, Bind, GatewaySettings, Readiness, TcpBind, UnixBind, create_app, serve_http
from capdag.gateway.arrival import BodyRoom
from capdag.relay import Switch, open_switch
from capdag.transport import local_link_pair
from capdag.transport.sockets import socket_link
from tests.gateway.scripted import Script, ScriptedHost, ScriptedRequest, model_caps

MODEL = "Test-Model"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
FINISH = ({"finish": "stop"}, USAGE)


class Served(NamedTuple):
    """A gateway that runs. `stopped` is set when `serve_http` has returned."""

    address: str
    port: int
    host: ScriptedHost
    switch: Switch
    shutdown: trio.Event
    stopped: trio.Event
    body_room: BodyRoom

    @property
    def base_url(self) -> str:
        """What an OpenAI client is given."""
        return f"{self.address}/v1"

    async def connect(self) -> Http:
        """Open a connection."""
        return Http(await trio.open_tcp_stream("127.0.0.1", self.port))


@asynccontextmanager
async def served(
    script: Script,
    link: str = "local",
    settings: GatewaySettings = GatewaySettings(),  # noqa: B008 - immutable
    *,
    caps: Sequence[Mapping[str, Any]] | None = None,
    unix: Path | None = None,
    admin: Admin | None = None,
    readiness: Readiness = Readiness.READY,
) -> AsyncIterator[Served]:
    """Run a gateway for the length of the block; one host, joined by `link` (local or socket), answers by `script`."""
    binds: list[Bind] = [TcpBind("127.0.0.1", 0), *([UnixBind(unix)] if unix else [])]
    stopped = trio.Event()
    async with open_switch() as switch, trio.open_nursery() as nursery:
        host = join_host(switch, script, model_caps(MODEL) if caps is None else caps, link, nursery)
        await settled(switch, caps)
        app = create_app(Client(switch), settings, admin=admin, readiness=lambda: readiness)
        shutdown = trio.Event()

        async def serve(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(app, binds, settings, shutdown=shutdown, task_status=task_status)
            stopped.set()

        addresses: list[str] = await nursery.start(serve)
        port = int(addresses[0].rpartition(":")[2])
        yield Served(addresses[0], port, host, switch, shutdown, stopped, app.body_room)
        nursery.cancel_scope.cancel()


async def settled(switch: Switch, caps: Sequence[Mapping[str, Any]] | None) -> None:
    """Wait until the host's caps are routed to."""
    for cap in model_caps(MODEL) if caps is None else caps:
        await switch.wait_for(cap["urn"])


def join_host(
    switch: Switch,
    script: Script,
    caps: Sequence[Mapping[str, Any]],
    link: str,
    nursery: trio.Nursery,
    name: str = "scripted",
) -> ScriptedHost:
    """Join a scripted host to the switch."""
    if link == "local":
        near, far = local_link_pair(name)
        host = ScriptedHost(far, caps, script, nursery)
        near.connect(switch.attach(near, name))
        far.connect(host)
    else:
        ends = [socket_link(end, name) for end in socket.socketpair()]
        host = ScriptedHost(ends[1], caps, script, nursery)
        nursery.start_soon(ends[0].run, switch.attach(ends[0], name))
        nursery.start_soon(ends[1].run, host)
    host.advertise()
    return host


class Reply(NamedTuple):
    """A response; `complete` is False if the connection ended before the end of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    complete: bool

    @property
    def error(self) -> Any:
        """The error object; fails unless the body is exactly that, in the one form."""
        assert self.headers["content-type"] == "application/json"
        shown = json.loads(self.body)
        assert set(shown) == {"error"}
        assert set(shown["error"]) == {"message", "type", "param", "code"}
        assert isinstance(shown["error"]["message"], str)
        return shown["error"]

    @property
    def events(self) -> list[Any]:
        """The events of a stream: JSON objects, and the text [DONE]."""
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        text = self.body.decode()
        assert text.endswith("\n\n")
        assert "\r" not in text
        found = []
        for event in text[:-2].split("\n\n"):
            assert event.startswith("data: ")
            assert "\n" not in event
            data = event.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        return found


class Http:
    """A client connection that reads as slowly as a test wants."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._parser = h11.Connection(h11.CLIENT)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        host: str = "localhost",
    ) -> None:
        """Send a request; a body that is not bytes goes as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {"host": host, **({"content-type": "application/json"} if body is not None else {}), **(headers or {})}
        if data:
            sent.setdefault("content-length", str(len(data)))
        head = self._parser.send(h11.Request(method=method, target=path, headers=list(sent.items())))
        await self.stream.send_all((head or b"") + data)
        if data:
            self._parser.send(h11.Data(data=data))
        self._parser.send(h11.EndOfMessage())

    async def next(self) -> h11.Event:
        """Return the next event of the response: its head, data, its end, or h11.ConnectionClosed."""
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError:  # the connection ended inside a body
                return h11.ConnectionClosed()
            if event is h11.NEED_DATA:
                try:
                    self._parser.receive_data(await self.stream.receive_some())
                except trio.BrokenResourceError:
                    return h11.ConnectionClosed()
                continue
            assert not isinstance(event, type)
            return event

    async def reply(self) -> Reply:
        """Read the whole response."""
        head = await self.next()
        assert isinstance(head, h11.Response), head
        body = b""
        while isinstance(event := await self.next(), h11.Data):
            body += event.data
        headers = {name.decode(): value.decode() for name, value in head.headers}
        return Reply(head.status_code, headers, body, isinstance(event, h11.EndOfMessage))

    async def data(self) -> bytes:
        """Return the next piece of a body, after the head."""
        event = await self.next()
        if isinstance(event, h11.Response):
            return await self.data()
        assert isinstance(event, h11.Data), event
        return bytes(event.data)

    async def close(self) -> None:
        """Leave."""
        await self.stream.aclose()


async def ask(
    server: Served,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    host: str = "localhost",
) -> Reply:
    """Send one request on a connection of its own and read the whole response."""
    http = await server.connect()
    try:
        await http.send(method, path, body, headers, host)
        return await http.reply()
    finally:
        await http.close()


def answering(*events: Any) -> Script:
    """Return a script that sends these events and ends well."""

    async def script(request: ScriptedRequest) -> None:
        await request.body()
        request.start()
        await request.emit(*events)
        request.end()

    return script


TEXT = answering({"text": "Hel"}, {"text": "lo"}, *FINISH)
"""Answers "Hello"."""


async def unanswered(request: ScriptedRequest) -> None:
    """A script that does nothing until it is cancelled, as a model that loads or reads a prompt."""
    await request.cancelled.wait()
    request.fail("CANCELLED", "user")


async def endless(request: ScriptedRequest) -> None:
    """A script that goes on until it is cancelled."""
    await request.body()
    request.start()

    async def go_on() -> None:
        while True:
            await request.emit({"text": "x" * 1000})
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        await request.cancelled.wait()
        nursery.cancel_scope.cancel()
    request.fail("CANCELLED", "user")
