"""What requests and answers may take of the gateway's memory, and that it comes back on every path."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from capdag.gateway import GatewaySettings
from capdag.gateway.arrival import SMALL_BODY, Arrival, BodyRoom
from tests.gateway.harness import CHAT, TEXT, Served, ask, endless, served, unanswered

PATH = "/v1/chat/completions"
ROOM = GatewaySettings(bodies_limit=4 * SMALL_BODY, body_deadline=0.3)
LARGE: dict[str, Any] = {**CHAT, "padding": "x" * (3 * SMALL_BODY)}
HEAD = "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"


@pytest.mark.parametrize(("path", "more"), [(PATH, {}), ("/v1/completions", {"prompt": "x"})])
async def test_an_answer_that_is_not_streamed_is_bounded(path: str, more: dict[str, str]) -> None:
    async with served(endless, settings=GatewaySettings(answer_limit=50_000)) as server:
        reply = await ask(server, "POST", path, {"model": CHAT["model"], **(more or CHAT)})
        assert (reply.status, reply.error["code"], reply.error["type"]) == (502, "answer_too_large", "server_error")
        assert reply.error["message"].startswith("the answer is over 50,000 bytes: ")
        assert reply.headers["x-should-retry"] == "false"
        with trio.fail_after(2):
            await server.host.cancelled.wait()


async def test_an_answer_that_is_streamed_is_not() -> None:
    async with served(endless, settings=GatewaySettings(answer_limit=50_000)) as server:
        http = await server.connect()
        await http.send("POST", PATH, {**CHAT, "stream": True})
        size = 0
        while size < 200_000:
            size += len(await http.data())
        await http.close()


@asynccontextmanager
async def begun(server: Served, framing: str, sent: bytes = b"", path: str = PATH) -> AsyncIterator[trio.SocketStream]:
    """Hold a connection whose request has begun."""
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(HEAD.format(path=path, framing=framing).encode() + sent)
        yield stream


async def until_held(server: Served, size: int) -> None:
    """Wait until that many bytes of bodies are counted."""
    with trio.fail_after(5):
        while server.body_room.held != size:  # noqa: ASYNC110 - a counter tells nobody that it moves
            await trio.sleep(0.005)


async def is_refused(server: Served) -> bool:
    """Whether there is no room for a large body; a small one has some."""
    small, large = await ask(server, "POST", PATH, CHAT), await ask(server, "POST", PATH, LARGE)
    assert small.status == 200
    if large.status == 200:
        return False
    assert (large.status, large.error["code"], large.headers["retry-after"]) == (503, "bodies_limit_reached", "2")
    assert large.headers["x-should-retry"] == "true"
    return True


@pytest.mark.parametrize(
    ("framing", "sent"),
    [
        (f"content-length: {2 * SMALL_BODY}", b""),
        (f"content-length: {2 * SMALL_BODY}", b"x" * SMALL_BODY),
        ("transfer-encoding: chunked", b"%x\r\n" % (2 * SMALL_BODY) + b"x" * 2 * SMALL_BODY),
    ],
)
async def test_a_body_that_is_being_read_has_its_room_until_its_client_goes(framing: str, sent: bytes) -> None:
    async with served(TEXT, settings=ROOM._replace(body_deadline=10)) as server:
        assert not await is_refused(server)
        async with begun(server, framing, sent):
            await until_held(server, 2 * SMALL_BODY)
            assert await is_refused(server)
        await until_held(server, 0)
        assert not await is_refused(server)


@pytest.mark.parametrize(("path", "status"), [(PATH, b"408"), ("/nowhere", b"404")])
async def test_the_room_of_a_request_that_fails_comes_back(path: str, status: bytes) -> None:
    async with served(TEXT, settings=ROOM) as server:
        async with begun(server, f"content-length: {2 * SMALL_BODY}", path=path) as stream:
            assert (await stream.receive_some())[9:12] == status
        await until_held(server, 0)
        assert not await is_refused(server)


async def test_the_body_of_a_request_that_runs_is_counted() -> None:
    async with served(unanswered, settings=ROOM) as server:
        http = await server.connect()
        await http.send("POST", PATH, LARGE)
        await server.host.asked.wait()
        server.host.script = TEXT
        assert await is_refused(server)
        await http.close()
        await server.host.cancelled.wait()
        await until_held(server, 0)
        assert not await is_refused(server)


async def test_who_asks_before_sending_a_body_without_room_is_not_told_to_go_on() -> None:
    async with served(TEXT, settings=ROOM._replace(body_deadline=10)) as server:
        framing = f"content-length: {3 * SMALL_BODY}"
        async with begun(server, framing):
            await until_held(server, 3 * SMALL_BODY)
            async with begun(server, f"{framing}\r\nexpect: 100-continue") as stream:
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 503")
        await until_held(server, 0)
        async with begun(server, f"{framing}\r\nexpect: 100-continue") as stream:
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")


async def test_a_body_that_is_larger_than_all_may_be_is_too_large() -> None:
    async with served(TEXT, settings=ROOM) as server:
        reply = await ask(server, "POST", PATH, {**CHAT, "padding": "x" * (5 * SMALL_BODY)})
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert "raise bodies_limit of [gateway]" in reply.error["message"]


async def test_a_body_without_room_in_its_middle_gives_back_what_it_had() -> None:
    room = BodyRoom(10 * SMALL_BODY, 4 * SMALL_BODY)
    first, second = Arrival(room), Arrival(room)
    first.expect(2 * SMALL_BODY)
    second.expect(None)
    sizes = []
    for _ in range(4):
        second.take(b"x" * SMALL_BODY, True)
        sizes.append(room.held // SMALL_BODY)
    assert sizes == [2, 4, 2, 2]
    first.release()
    second.release()
    assert room.held == 0
