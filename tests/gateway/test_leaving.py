"""Clients that leave or stop reading, and the end of the server: nothing goes on for nobody, nothing hangs."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import h11
import httpx
import pytest
import trio

from capdag.errors import ConfigError
from capdag.gateway import GatewaySettings, PortInUseError, TcpBind, UnixBind, create_app, serve_http
from tests.gateway.harness import CHAT, FINISH, TEXT, Http, Served, answering, ask, endless, served, unanswered
from tests.gateway.scripted import ScriptedRequest
from tests.gateway.test_answers import both_links

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}


def reset(stream: trio.SocketStream) -> None:
    """Make closing a reset instead of a farewell."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@both_links
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize(
    ("path", "body", "script", "phase"),
    [
        (PATH, STREAM, endless, "streaming"),
        (PATH, STREAM, unanswered, "before the first byte"),
        (PATH, CHAT, endless, "not streamed, answering"),
        (PATH, CHAT, unanswered, "not streamed, waiting"),
        ("/v1/completions", {"model": CHAT["model"], "prompt": "x"}, unanswered, "completion"),
        ("/v1/completions", {"model": CHAT["model"], "prompt": "x", "stream": True}, endless, "streamed completion"),
    ],
)
async def test_a_client_that_leaves_cancels_its_request(
    link: str, how: str, path: str, body: Any, script: Any, phase: str
) -> None:
    async with served(script, link) as server:
        http = await server.connect()
        await http.send("POST", path, body)
        if "streaming" in phase:
            assert await http.data()
        await server.host.asked.wait()
        if how == "reset":
            reset(http.stream)
        await http.close()
        with trio.fail_after(2):
            await server.host.cancelled.wait()


async def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing() -> None:
    async with served(TEXT) as server:
        http = await server.connect()
        await http.stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        await http.close()
        assert (await ask(server, "POST", PATH, CHAT)).status == 200
        assert len(server.host.requests) == 1


@both_links
async def test_a_client_that_stops_reading_is_dropped_and_its_neighbour_is_not(link: str) -> None:
    settings = GatewaySettings(write_deadline=0.3)
    async with served(endless, link, settings) as server:
        stalled, neighbour = await server.connect(), await server.connect()
        await stalled.send("POST", PATH, STREAM)
        await neighbour.send("POST", PATH, STREAM)
        received = 0
        with trio.fail_after(10):
            while not server.host.requests or not server.host.requests[0].cancelled.is_set():
                received += len(await neighbour.data())
            for _ in range(20):
                received += len(await neighbour.data())
        assert not server.host.requests[1].cancelled.is_set()
        assert received > 20_000
        await stalled.close()
        await neighbour.close()


async def test_a_slow_reader_that_goes_on_reading_is_served_to_the_end() -> None:
    text = "x" * 100_000
    script = answering(*({"text": text} for _ in range(60)), *FINISH)
    async with served(script, settings=GatewaySettings(write_deadline=0.5)) as server:
        http = await server.connect()
        http.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await http.send("POST", PATH, STREAM)
        size, pauses = 0, 0
        while not isinstance(event := await http.next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > (pauses + 1) * 1_000_000:
                    pauses += 1
                    await trio.sleep(0.25)
        await http.close()
        assert pauses > 4  # longer in all than the deadline
        assert size > 6_000_000


async def test_shutdown_lets_running_requests_finish() -> None:
    released = trio.Event()

    async def script(request: ScriptedRequest) -> None:
        await request.body()
        request.start()
        await request.emit({"text": "a"})
        await released.wait()
        await request.emit(*FINISH)
        request.end()

    async with served(script) as server:
        http, idle = await server.connect(), await server.connect()
        await http.send("POST", PATH, STREAM)
        assert await http.data()
        server.shutdown.set()
        assert await idle.stream.receive_some() == b""
        await wait_refused(server)
        released.set()
        reply = b"".join([event.data async for event in rest(http)])
        assert reply.endswith(b"data: [DONE]\n\n")
        with trio.fail_after(1):
            await server.stopped.wait()
        await http.close()
        await idle.close()


async def rest(http: Any) -> Any:
    while isinstance(event := await http.next(), h11.Data):
        yield event


async def wait_refused(server: Served) -> None:
    with trio.fail_after(1):
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", server.port)).aclose()
            except OSError:
                return
            await trio.sleep(0.005)


@both_links
async def test_shutdown_ends_what_does_not_finish_with_an_error_the_client_is_told(link: str) -> None:
    settings = GatewaySettings(drain=0.1, last_words=0.5)
    async with served(endless, link, settings) as server:
        streaming, waiting = await server.connect(), await server.connect()
        await streaming.send("POST", PATH, STREAM)
        await waiting.send("POST", PATH, CHAT)
        assert await streaming.data()
        server.shutdown.set()
        replied = await waiting.reply()
        assert (replied.status, replied.error["code"]) == (503, "aborted")
        text = b"".join([event.data async for event in rest(streaming)])
        assert json.loads(text.decode().split("\n\n")[-2][6:])["error"]["code"] == "aborted"
        with trio.fail_after(2):
            await server.stopped.wait()
        assert all(request.cancelled.is_set() for request in server.host.requests)
        await streaming.close()
        await waiting.close()


@pytest.mark.parametrize("how", ["shutdown", "cancel"])
async def test_a_client_that_stops_reading_does_not_hold_the_end(how: str) -> None:
    settings = GatewaySettings(write_deadline=60, drain=0.1, last_words=0.1)
    with trio.fail_after(5):
        async with served(endless, "local", settings) as server:
            http = await server.connect()
            await http.send("POST", PATH, STREAM)
            await trio.sleep(0.3)
            if how == "shutdown":
                server.shutdown.set()
                await server.stopped.wait()
        await http.close()


async def test_idle_connections_and_slow_heads_end_by_the_limit() -> None:
    async with served(TEXT, settings=GatewaySettings(idle_limit=0.1)) as server:
        idle, slow = await server.connect(), await server.connect()
        await slow.stream.send_all(b"GET /healthz HTT")
        with trio.fail_after(2):
            assert await idle.stream.receive_some() == b""
            assert await slow.stream.receive_some() == b""
        await idle.close()
        await slow.close()


async def test_a_slow_body_ends_by_the_limit() -> None:
    async with served(TEXT, settings=GatewaySettings(body_deadline=0.1)) as server:
        http = await server.connect()
        await http.stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        with trio.fail_after(2):
            assert b" 408 " in await http.stream.receive_some()
        await http.close()


async def test_a_connection_is_used_again() -> None:
    async with served(TEXT) as server:
        http = await server.connect()
        for _ in range(3):
            await http.send("POST", PATH, STREAM)
            assert (await http.reply()).complete
            http._parser.start_next_cycle()
        await http.close()


async def test_a_taken_port_is_told_with_the_remedy() -> None:
    async with served(TEXT) as server:
        app = create_app(None)  # type: ignore[arg-type]
        with pytest.raises(PortInUseError) as caught:
            await serve_http(app, [TcpBind("127.0.0.1", 0), TcpBind("127.0.0.1", server.port)])
        assert f"port {server.port} of 127.0.0.1 is in use" in str(caught.value)
        assert "--port" in str(caught.value)


class FakeAdmin:
    def __init__(self) -> None:
        self.was_reset: list[str] = []

    def ps(self) -> dict[str, Any]:
        return {"cartridges": [{"id": "llama/x", "state": "running"}]}

    def reset(self, name: str) -> None:
        if name != "llama/x":
            raise ConfigError(f"no cartridge record {name!r}; there is llama/x")
        self.was_reset.append(name)

    def reload(self) -> dict[str, Any]:
        if self.was_reset:
            raise ConfigError("models.slots = 0: expected a whole number >= 1")
        return {"added": ["llama/y"]}


async def test_admin_routes_answer_on_the_unix_socket_only(tmp_path: Path) -> None:
    admin, path = FakeAdmin(), tmp_path / "8080.sock"

    def use(method: str, url: str, **more: Any) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://evil.example") as client:
            return client.request(method, url, **more)

    async def local(method: str, url: str, **more: Any) -> httpx.Response:
        return await trio.to_thread.run_sync(lambda: use(method, url, **more))

    async with served(TEXT, unix=path, admin=admin) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        assert (await local("GET", "/_capdag/ps")).json() == admin.ps()
        assert (await local("POST", "/_capdag/reload")).json() == {"added": ["llama/y"]}
        assert (await local("POST", "/_capdag/reset/llama/x")).json() == {"reset": "llama/x"}
        wrong = await local("POST", "/_capdag/reload")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (409, "not_reloaded")
        assert admin.was_reset == ["llama/x"]
        missing = await local("POST", "/_capdag/reset/y")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_record")
        assert "there is llama/x" in missing.json()["error"]["message"]
        assert (await local("POST", PATH, json=CHAT)).json()["choices"][0]["message"]["content"] == "Hello"
        for method, url in (("GET", "/_capdag/ps"), ("POST", "/_capdag/reset/llama/x"), ("POST", "/_capdag/reload")):
            assert (await ask(server, method, url)).status == 404
    assert not path.exists()
    assert UnixBind(path).path == path


@both_links
async def test_at_shutdown_no_answer_is_torn_whatever_it_is_about_to_say(link: str) -> None:
    """Answers begin, a few milliseconds apart, around the moment in which they are ended."""
    count, drain = 24, 0.1
    due, all_asked = iter(range(count)), trio.Event()

    async def script(request: ScriptedRequest) -> None:
        await request.body()
        turn = next(due)
        if turn == count - 1:
            all_asked.set()
        await server.shutdown.wait()
        with trio.move_on_after(drain + (turn - count / 2) * 0.001):
            await request.cancelled.wait()
        if not request.cancelled.is_set():
            request.start()
            await request.emit({"text": "a"})
            await request.cancelled.wait()
        request.fail("CANCELLED", "user")

    async def check(http: Http, seen: list[int]) -> None:
        reply = await http.reply()
        seen.append(reply.status)
        error = reply.events[-1]["error"] if reply.status == 200 else reply.error
        assert error["code"] == "aborted"
        assert reply.complete == (reply.status == 503)
        await http.close()

    seen: list[int] = []
    async with served(script, link, GatewaySettings(drain=drain, last_words=1)) as server:
        clients = [await server.connect() for _ in range(count)]
        for http in clients:
            await http.send("POST", PATH, STREAM)
        with trio.fail_after(5):
            await all_asked.wait()
            async with trio.open_nursery() as nursery:
                for http in clients:
                    nursery.start_soon(check, http, seen)
                server.shutdown.set()
            await server.stopped.wait()
    assert set(seen) <= {200, 503}
    assert len(seen) == count
