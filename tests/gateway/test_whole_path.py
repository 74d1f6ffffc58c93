"""A request's whole way: HTTP, gateway, client, switch, host, a real cartridge process, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from capdag.client import Client
from capdag.gateway import TcpBind, create_app, serve_http
from capdag.host import CartridgeRecord, HostRuntime
from tests.gateway.harness import Http, Reply
from tests.gateway.speller import CHAT
from tests.stack import LINKS, running_stack

RECORD = CartridgeRecord(
    "speller",
    [sys.executable, "-m", "capdag.cartridge", "tests.gateway.speller"],
    [{"urn": CHAT, "title": "Spell", "aliases": ["spell"], "metadata": {"model": "Speller"}}],
    {},
)
every_link = pytest.mark.parametrize("link", LINKS)


@asynccontextmanager
async def gateway(link: str) -> AsyncIterator[tuple[int, HostRuntime]]:
    """Run the stack with a gateway; gives its port and the host."""
    async with running_stack([RECORD], link=link) as stack, trio.open_nursery() as nursery:
        app = create_app(Client(stack.switch))
        addresses: list[str] = await nursery.start(partial(serve_http, app, [TcpBind("127.0.0.1", 0)]))
        yield int(addresses[0].rpartition(":")[2]), stack.host
        nursery.cancel_scope.cancel()


async def connect(port: int, text: str, *, stream: bool) -> Http:
    http = Http(await trio.open_tcp_stream("127.0.0.1", port))
    messages = [{"role": "user", "content": text}]
    await http.send("POST", "/v1/chat/completions", {"model": "speller", "messages": messages, "stream": stream})
    return http


async def chat(port: int, text: str, *, stream: bool) -> Reply:
    http = await connect(port, text, stream=stream)
    try:
        return await http.reply()
    finally:
        await http.close()


def spelled(reply: Reply) -> str:
    events: list[Any] = [event for event in reply.events if event != "[DONE]" and "choices" in event]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


@every_link
async def test_an_answer_comes_through_streamed_and_whole(link: str) -> None:
    async with gateway(link) as (port, _):
        reply = await chat(port, "hello, all of you", stream=True)
        assert (reply.status, reply.complete, spelled(reply)) == (200, True, "hello, all of you")
        whole = json.loads((await chat(port, "hello", stream=False)).body)
        assert (whole["choices"][0]["message"]["content"], whole["model"]) == ("hello", "Speller")
        assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}


@every_link
async def test_a_cartridge_that_dies_in_mid_stream_is_told_and_the_next_request_served(link: str) -> None:
    async with gateway(link) as (port, _):
        reply = await chat(port, "die", stream=True)
        assert (reply.status, reply.complete, spelled(reply)) == (200, False, "di")
        assert reply.events[-1]["error"]["code"] == "cartridge_died"
        assert spelled(await chat(port, "again", stream=True)) == "again"
        died = await chat(port, "die", stream=False)
        assert (died.status, died.error["code"], died.headers["x-should-retry"]) == (502, "cartridge_died", "false")


@every_link
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_handler_and_not_its_neighbour(link: str, stream: bool) -> None:
    async with gateway(link) as (port, host):
        leaving, staying = await connect(port, "for ever", stream=stream), await connect(port, "x" * 200, stream=True)
        await busy_with(host, 2)
        await leaving.close()
        await busy_with(host, 1)
        assert spelled(await staying.reply()) == "x" * 200
        await staying.close()


async def busy_with(host: HostRuntime, requests: int) -> None:
    """Wait until the cartridge works on so many requests."""
    with trio.fail_after(5):
        while True:
            if sum(cartridge["active"] for cartridge in host.snapshot()["cartridges"]) == requests:
                return
            await trio.sleep(0.01)
