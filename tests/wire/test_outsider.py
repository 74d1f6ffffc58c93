"""A cartridge written from protocol-spec alone, in another language, is accepted and served by our host."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from capdag.client import Argument
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostSettings
from capdag.wire import IDENTITY_CAP, Limits
from tests.stack import LINKS, Stack, running_stack

PATIENCE = 60
"""Seconds after which a test that hangs says where."""

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")

ECHO = "cap:in=media:octets;node-echo;out=media:octets"
UPPER = 'cap:in="media:enc=utf-8";node-upper;out="media:enc=utf-8"'
SCRIPT = Path(__file__).parents[2] / "protocol-spec" / "examples" / "node" / "echo.js"


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Stack]:
    record = CartridgeRecord("node", [str(NODE), str(SCRIPT)], [{"urn": ECHO}, {"urn": UPPER}])
    with trio.fail_after(PATIENCE):
        async with running_stack([record], **options) as stack:
            yield stack


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", [0, 1, 120, 300_000, 1_000_000])
async def test_bytes_come_back(link: str, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with served(link=link) as stack:
        answer = await stack.client.collect(ECHO, [Argument("media:octets", data)])
        assert b"".join(answer.streams[0].values) == data
        assert answer.meta["exit_code"] == 0


async def test_text_comes_back_in_capitals_and_the_manifest_is_advertised() -> None:
    async with served() as stack:
        answer = await stack.client.collect(UPPER, [Argument("media:enc=utf-8", "straße".encode())])
        assert b"".join(piece.encode() for piece in answer.streams[0].values).decode() == "STRASSE"
        assert {ECHO, UPPER} <= {one.text for one in stack.client.capabilities()}
        (cartridge,) = [one for one in stack.host.snapshot()["cartridges"] if one["id"] == "node"]
        assert cartridge["state"] == "running"
        assert set(cartridge["pools"]) == {IDENTITY_CAP, ECHO, UPPER, "all"}


async def test_a_request_may_say_less_than_the_cap() -> None:
    async with served() as stack:
        answer = await stack.client.collect("cap:node-echo", [Argument("media:octets", b"less")])
        assert answer.streams[0].values == [b"less"]


async def test_many_at_once_in_a_window_of_one() -> None:
    limits = Limits(max_frame=70_000, max_chunk=1_000, max_reorder_buffer=64, initial_credit=1)
    data = [bytes([number]) * 20_000 for number in range(10)]
    got: dict[int, bytes] = {}
    async with served(settings=HostSettings(limits=limits)) as stack:

        async def one(number: int) -> None:
            answer = await stack.client.collect(ECHO, [Argument("media:octets", data[number])])
            got[number] = b"".join(answer.streams[0].values)

        async with trio.open_nursery() as nursery:
            for number in range(len(data)):
                nursery.start_soon(one, number)
        assert [got[number] for number in range(len(data))] == data
        protocol = stack.host.snapshot()["protocol"]
        assert (protocol["drops"]["total"], protocol["incoming_rxids"]) == (0, 0)


async def test_cancel_and_heartbeats() -> None:
    settings = HostSettings(heartbeat_interval=0.2, heartbeat_timeout=0.19, cancel_grace_idle=2)
    async with served(settings=settings) as stack:
        more = trio.Event()

        async def endless() -> Any:
            yield b"begin"
            await more.wait()

        async with stack.client.call(ECHO, [Argument("media:octets", endless())]) as call:
            async for batch in call.batches():
                if batch:
                    break
        answer = await stack.client.collect(ECHO, [Argument("media:octets", b"alive")])
        assert answer.streams[0].values == [b"alive"]
        await trio.sleep(0.7)
        (cartridge,) = [one for one in stack.host.snapshot()["cartridges"] if one["id"] == "node"]
        assert (cartridge["state"], cartridge["active"], cartridge["restarts"]) == ("running", 0, 0)


async def test_what_it_refuses_has_its_own_code() -> None:
    async with served() as stack:
        with pytest.raises(RequestFailedError) as caught:
            await stack.client.collect(ECHO, [])
        assert (caught.value.code, caught.value.attribution) == ("INVALID_REQUEST", "input")
        assert stack.host.snapshot()["protocol"]["drops"]["total"] == 0
