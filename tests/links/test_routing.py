"""Requests over every kind of link: the same stack as elsewhere, a representative set."""

from __future__ import annotations

import pytest
import trio

from capdag.client import Argument
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostSettings
from tests.links.kinds import KINDS
from tests.misbehave import CALL, CAP, GOOD, cap_object, command, environment
from tests.stack import Stack, running_stack

LARGE = bytes(range(256)) * (5 << 12)  # 5 MiB

SETTINGS = HostSettings(stop_grace=0.4)


def record(misdeed: str, *caps: str) -> CartridgeRecord:
    settings = {"caps": list(caps), "called": GOOD}
    return CartridgeRecord(misdeed, command(misdeed), list(map(cap_object, caps)), settings, environment())


async def echo(stack: Stack, cap: str, data: bytes) -> None:
    answer = await stack.client.collect(cap, [Argument("media:octets", data)])
    assert answer.value == data


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_go_over_every_kind_of_link(kind: str) -> None:
    """K12: Small and large bodies both ways, many at once, a call of a cartridge, an error, a cancel, a death."""
    records = [record("Nothing", GOOD), record("IgnoresSigterm", CALL), record("Dies", CAP)]
    with trio.fail_after(60):
        async with running_stack(records, link=kind, settings=SETTINGS) as stack:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(echo, stack, GOOD, LARGE)
                nursery.start_soon(echo, stack, CALL, LARGE[:100_000])
                for number in range(20):
                    nursery.start_soon(echo, stack, GOOD, b"%d" % number)
            with pytest.raises(RequestFailedError, match="SIGKILL") as caught:
                await stack.client.collect(CAP, [Argument("media:octets", b"x")])
            assert caught.value.code == "CARTRIDGE_DIED"
            with trio.move_on_after(0.01):
                await echo(stack, CALL, LARGE)
            while stack.switch.snapshot()["requests"]["active"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await echo(stack, GOOD, b"after it")
            protocol = stack.host.snapshot()["protocol"]
            assert (protocol["incoming_rxids"], protocol["outgoing_rids"]) == (0, 0)
