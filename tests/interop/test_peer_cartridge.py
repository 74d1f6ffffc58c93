"""A cartridge built on the public package and one of ours, side by side through our host and switch."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from capdag.client import Argument, Client
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord
from tests.stack import LINKS, Stack, running_stack

ROOT = Path(__file__).parents[2]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
PEER_ECHO = "cap:in=media:octets;out=media:octets;peer-echo"
PEER_ITEMS = "cap:in=media:octets;out=media:octets;peer-items"
PEER_FAIL = "cap:in=media:octets;out=media:octets;peer-fail"
OUR_ECHO = "cap:echo;in=media:octets;out=media:octets"
MIB = 1 << 20


def records() -> list[CartridgeRecord]:
    peer_caps: list[dict[str, Any]] = [{"urn": urn, "title": "peer"} for urn in (PEER_ECHO, PEER_ITEMS, PEER_FAIL)]
    return [
        CartridgeRecord("peer", (str(PEER_PYTHON), str(ROOT / "tests/interop/peer_cartridge.py")), peer_caps, {}),
        CartridgeRecord(
            "echo", (sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main"), [{"urn": OUR_ECHO}], {}
        ),
    ]


@pytest.fixture(params=LINKS)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    if not PEER_PYTHON.exists():
        pytest.fail("the public package has no environment here: run the README's test command, which makes it")
    async with running_stack(records(), link=str(request.param)) as running:
        yield running


async def echo(client: Client, cap: str, data: bytes) -> bytes:
    answer = await client.collect(cap, [Argument("media:octets", data)])
    data: bytes = answer.value
    return data


async def test_small_answers_side_by_side(stack: Stack) -> None:
    found: dict[tuple[str, int], bytes] = {}

    async def ask(cap: str, number: int) -> None:
        found[cap, number] = await echo(stack.client, cap, b"hello %d" % number)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, PEER_ECHO, number)
                nursery.start_soon(ask, OUR_ECHO, number)
    assert found == {(cap, n): b"hello %d" % n for cap in (PEER_ECHO, OUR_ECHO) for n in range(20)}


async def test_64_mib_both_ways_side_by_side(stack: Stack) -> None:
    data = bytes(range(256)) * (64 * MIB // 256)
    found: dict[str, bool] = {}

    async def ask(cap: str) -> None:
        found[cap] = await echo(stack.client, cap, data) == data

    with trio.fail_after(180):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, PEER_ECHO)
            nursery.start_soon(ask, OUR_ECHO)
    assert found == {PEER_ECHO: True, OUR_ECHO: True}


async def test_a_sequence_with_progress(stack: Stack) -> None:
    with trio.fail_after(60):
        answer = await stack.client.collect(PEER_ITEMS, [Argument("media:octets", b"100")])
    assert answer.value == [{"number": number} for number in range(100)]
    assert len([record for record in answer.logs if record.level == "progress"]) >= 1


async def test_a_failure_of_the_peer_reaches_the_caller(stack: Stack) -> None:
    with trio.fail_after(60), pytest.raises(RequestFailedError, match="this handler always fails") as caught:
        await stack.client.collect(PEER_FAIL, [Argument("media:octets", b"x")])
    assert caught.value.code == "HANDLER_ERROR"
