"""Calls of real cartridges under our own switch and host: to another process, and back to the one that calls."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from capdag.client import Argument
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import STUB_COMMAND, TASKS_COMMAND
from tests.stack import Stack, running_stack

_ASKING = (stub.ECHO, stub.ASK, stub.ASK_PLAIN, stub.LEAVE, stub.LEAVE_PLAIN, stub.FAN, stub.NAMED)
_ASKED = (stub.TWO, stub.FLOOD, stub.ERROR, stub.HOLD)


def records() -> list[CartridgeRecord]:
    """One cartridge that calls and one that is called."""
    return [
        CartridgeRecord("tasks", TASKS_COMMAND, [{"urn": urn} for urn in _ASKING]),
        CartridgeRecord("stub", STUB_COMMAND, [{"urn": urn} for urn in _ASKED]),
    ]


async def ask(stack: Stack, cap: str, callee: str) -> bytes:
    """Have a handler call another and return what it answers."""
    answer: Any = await stack.client.collect(cap, [Argument(stub.TEXT, callee.encode())])
    value = answer.value
    return value.encode() if isinstance(value, str) else bytes(value)


async def test_calls_through_the_host() -> None:
    whole = b"".join(bytes((number,)) * 5000 for number in range(100))
    with trio.fail_after(30):
        async with running_stack(records()) as stack:
            for cap in (stub.ASK, stub.ASK_PLAIN):
                assert await ask(stack, cap, stub.ECHO) == whole, "three windows to the same process and back"
                with pytest.raises(RequestFailedError) as failed:
                    await ask(stack, cap, stub.ERROR)
                assert (failed.value.code, failed.value.attribution) == ("TOO_HOT", "input")
                assert failed.value.detail["param"] == "temperature"
                with pytest.raises(RequestFailedError) as failed:
                    await ask(stack, cap, "cap:nobody;in=media:octets;out=media:octets")
                assert failed.value.code == "NO_HANDLER"
            assert await ask(stack, stub.FAN, stub.ECHO) == b"".join(b"%d;" % number for number in range(30))
            assert await ask(stack, stub.NAMED, stub.TWO) == b"extra no option"
            for cap in (stub.LEAVE, stub.LEAVE_PLAIN):
                assert await ask(stack, cap, stub.FLOOD) == b"x" * 1000
