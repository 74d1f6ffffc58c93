"""Five misdeeds through the whole stack: every request ends once, and nothing is left (the leak fixture looks)."""

from __future__ import annotations

import pytest
import trio

from capdag.client import Argument, Client
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostSettings
from tests.misbehave import CAP, GOOD, cap_object, command, environment
from tests.stack import LINKS, running_stack

SETTINGS = HostSettings(stop_grace=0.4, first_pause=0.1, handshake_timeout=8, identity_timeout=8)
REQUESTS = 8


def record(misdeed: str) -> CartridgeRecord:
    caps = [cap_object(CAP), cap_object(GOOD)]
    return CartridgeRecord(misdeed, command(misdeed), caps, {}, environment())


async def outcomes(client: Client, cap: str) -> list[str]:
    """Send requests at once; return how each ended: the answer as text, or the error's code."""
    ends: list[str] = []

    async def ask(number: int) -> None:
        try:
            answer = await client.collect(cap, [Argument("media:octets", b"%d" % number)])
            ends.append("answered" if answer.value == b"%d" % number else f"wrong: {answer.value!r}")
        except RequestFailedError as error:
            ends.append(f"{error.code}: {error.message} {error.detail}")

    async with trio.open_nursery() as nursery:
        for number in range(REQUESTS):
            nursery.start_soon(ask, number)
    return ends


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    ("misdeed", "code", "told"),
    [
        ("ExitBeforeHello", "SPAWN_FAILED", "no such weights"),
        ("Dies", "CARTRIDGE_DIED", "SIGKILL"),
        ("IgnoresSigterm", "answered", ""),
        ("FloodsStderr", "answered", ""),
        ("Prints", "PROTOCOL_VIOLATION", "prog"),
    ],
)
async def test_a_misdeed_costs_its_own_requests_one_terminal_each(
    link: str, misdeed: str, code: str, told: str
) -> None:
    with trio.fail_after(30):
        async with running_stack([record(misdeed)], link=link, settings=SETTINGS) as stack:
            ends = await outcomes(stack.client, CAP)
            assert len(ends) == REQUESTS
            assert {end.split(":")[0] for end in ends} == {code}
            assert all(told in end for end in ends)
            assert stack.switch.snapshot()["requests"]["active"] == []
