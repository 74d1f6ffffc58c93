"""Requests that wait for a slot: turns of callers, and clients that leave meanwhile."""

from __future__ import annotations

import trio

from capdag.errors import AttributionClass, RequestFailedError
from capdag.gateway import GatewaySettings
from capdag.gateway.errors import api_error
from capdag.wire import LogRecord, log_frame
from tests.gateway.harness import CHAT, FINISH, MODEL, Served, ask, join_host, served
from tests.gateway.scripted import ScriptedRequest, model_caps


async def slow(request: ScriptedRequest) -> None:
    """Answer when told to, by `cancelled`: the test's own signal here."""
    await request.body()
    await request.cancelled.wait()
    request.start()
    await request.emit({"text": "x"}, *FINISH)
    request.end()


async def waiting(server: Served, count: int) -> None:
    """Wait until so many requests wait at the switch."""
    with trio.fail_after(5):
        while server.switch.health().waiting != count:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.005)


async def test_keys_take_turns() -> None:
    """One slot, four requests with one key, then one with another: it is served second."""
    answered: list[str] = []
    async with served(slow) as server, trio.open_nursery() as nursery:
        server.host.advertise(slots=1)

        async def chat(key: str) -> None:
            reply = await ask(server, "POST", "/v1/chat/completions", CHAT, {"authorization": f"Bearer {key}"})
            assert reply.status == 200
            answered.append(key)

        for number, key in enumerate("aaaab"):
            nursery.start_soon(chat, key)
            await waiting(server, number)
            with trio.fail_after(5):
                await server.host.asked.wait()
        for number in range(5):
            server.host.requests[number].cancelled.set()
            with trio.fail_after(5):
                while len(answered) == number:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.005)
        assert answered == ["a", "b", "a", "a", "a"]


async def test_a_client_that_leaves_while_it_waits_costs_the_model_nothing() -> None:
    async with served(slow) as server, trio.open_nursery() as nursery:
        server.host.advertise(slots=1)
        nursery.start_soon(ask, server, "POST", "/v1/chat/completions", CHAT)
        with trio.fail_after(5):
            await server.host.asked.wait()
        leaver = await server.connect()
        await leaver.send("POST", "/v1/chat/completions", CHAT)
        await waiting(server, 1)
        nursery.start_soon(ask, server, "POST", "/v1/chat/completions", CHAT)
        await waiting(server, 2)
        await leaver.close()
        await waiting(server, 1)
        assert len(server.host.requests) == 1
        server.host.requests[0].cancelled.set()
        await waiting(server, 0)
        assert len(server.host.requests) == 2
        server.host.requests[1].cancelled.set()


async def test_a_position_that_is_no_number_is_not_told() -> None:
    async def queued(request: ScriptedRequest) -> None:
        await request.body()
        told = LogRecord("queued", "somewhere", attribution=AttributionClass.INTERNAL, extra={"position": {True: b"1"}})
        request.send(log_frame(request.rid, told))
        await trio.sleep(0.2)
        request.start()
        await request.emit({"text": "x"}, *FINISH)
        request.end()

    async with served(queued, settings=GatewaySettings(commit_after=0.02, heartbeat=0.02)) as server:
        reply = await ask(server, "POST", "/v1/chat/completions", {**CHAT, "stream": True})
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert b"queue_position" not in reply.body


async def test_a_stream_that_waits_tells_its_position() -> None:
    settings = GatewaySettings(commit_after=0.05, heartbeat=0.05)
    async with served(slow, settings=settings) as server, trio.open_nursery() as nursery:
        server.host.advertise(slots=1)
        nursery.start_soon(ask, server, "POST", "/v1/chat/completions", CHAT)
        with trio.fail_after(5):
            await server.host.asked.wait()
        http = await server.connect()
        await http.send("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        with trio.fail_after(5):
            while b'"queue_position":1' not in (data := await http.data()):
                pass
        assert b'"choices":[{"index":0,"delta":{' in data
        server.host.requests[0].cancelled.set()
        await waiting(server, 0)
        server.host.requests[1].cancelled.set()
        rest = ""
        with trio.fail_after(5):
            while not rest.endswith("data: [DONE]\n\n"):
                rest += (await http.data()).decode()
        assert "queue_position" not in rest.partition('"content":"x"')[2]
        await http.close()


async def test_a_request_waits_for_a_model_whose_host_is_away() -> None:
    """It is not on offer, and not unknown either: the host that comes back answers."""
    replies: list[int] = []
    async with served(slow) as server, trio.open_nursery() as nursery:
        server.host.die()

        async def chat() -> None:
            replies.append((await ask(server, "POST", "/v1/chat/completions", CHAT)).status)

        nursery.start_soon(chat)
        await waiting(server, 1)
        assert (await ask(server, "GET", "/v1/models")).body == b'{"object":"list","data":[]}'
        unknown = {**CHAT, "model": "unknown"}
        assert (await ask(server, "POST", "/v1/chat/completions", unknown)).error["code"] == "model_not_found"
        host = join_host(server.switch, slow, model_caps(MODEL), "local", nursery)
        with trio.fail_after(5):
            await host.asked.wait()
        host.requests[0].cancelled.set()
        with trio.fail_after(5):
            while not replies:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.005)
    assert replies == [200]


def test_who_waited_for_too_long_is_told_when_to_come_again() -> None:
    failure = RequestFailedError(
        "DEADLINE_EXCEEDED", AttributionClass.RESOURCE, "no room (queue_timeout)", {"retryable": True}
    )
    headers = api_error(failure, started=False).render()[1]
    assert (headers["retry-after"], headers["x-should-retry"]) == ("2", "true")
    assert "retry-after" not in api_error(failure, started=True).render()[1]
