"""A cartridge built on the public package and one of ours, side by side under our host: a large payload at once."""

from __future__ import annotations

import sys

import trio

from capdag.client import Argument
from capdag.host import CartridgeRecord
from tests.interop.engines import HERE, PEER_PYTHON
from tests.interop.vocabulary import NAME_VARIABLE, OCTETS, cap
from tests.stack import running_stack

MIB = 1 << 20
COMMANDS = {
    "left": (str(PEER_PYTHON), "-E", str(HERE / "peer_cartridge.py")),
    "right": (sys.executable, "-m", "capdag.cartridge", "tests.interop.our_cartridge"),
}


async def test_64_mib_both_ways_side_by_side(peer_environment: None) -> None:
    data = bytes(range(256)) * (64 * MIB // 256)
    records = [
        CartridgeRecord(name, command, [{"urn": cap("echo", name)}], env={NAME_VARIABLE: name})
        for name, command in COMMANDS.items()
    ]
    found: dict[str, bool] = {}
    async with running_stack(records, link="socket") as stack:

        async def ask(name: str) -> None:
            answer = await stack.client.collect(cap("echo", name), [Argument(OCTETS, data)], answer_limit=None)
            found[name] = answer.value == data

        with trio.fail_after(180):
            async with trio.open_nursery() as nursery:
                for name in COMMANDS:
                    nursery.start_soon(ask, name)
    assert found == {"left": True, "right": True}
