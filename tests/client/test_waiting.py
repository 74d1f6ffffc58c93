"""Calls that stand in line at the switch."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from capdag.client import Argument, Call, Client, Ended, Logged
from capdag.relay import Switch, open_switch
from capdag.wire import FrameType
from tests.relay.masters import ECHO, Answer, Master, bounded

HELLO = [Argument("media:octets", b"hello")]


async def told(call: Call) -> list[object]:
    """Read a call to its end; return the positions and levels of its LOGs, and its end."""
    found: list[object] = []
    async for batch in call.batches():
        for event in batch:
            if isinstance(event, Logged):
                found.append((event.record.extra or {}).get("position", event.record.level))
            elif isinstance(event, Ended):
                found.append("end")
    return found


async def take(master: Master) -> Answer:
    """Take a whole request and check that its argument has come behind it."""
    received = await master.take_request()
    assert received.payload == b"\x45hello"
    return received.answer


async def test_a_call_hears_where_it_stands_and_sends_its_arguments_when_it_goes(autojump_clock: MockClock) -> None:
    async with open_switch() as switch, bounded(switch, 1) as master:
        client, heard = Client(switch), dict[str, list[object]]()

        async def run(name: str) -> None:
            async with client.call(ECHO, HELLO, caller=name) as call:
                heard[name] = await told(call)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(run, name)
                await trio.sleep(0.1)
            for _ in "abc":
                answer = await take(master)
                await trio.sleep(5)
                assert [view for view in master.untaken() if view.type is FrameType.REQ] == []
                master.send(answer.end())
        assert heard == {"a": ["end"], "b": [1, "dequeued", "end"], "c": [2, 1, "dequeued", "end"]}
        assert len(switch.alarms) == 0


async def _leave_while_waiting(switch: Switch, seconds: float) -> None:
    with trio.move_on_after(seconds) as scope:
        async with Client(switch).call(ECHO, HELLO) as call:
            await told(call)
    assert scope.cancelled_caught


async def test_leaving_a_call_that_waits_takes_it_out_of_line(autojump_clock: MockClock) -> None:
    async with open_switch() as switch, bounded(switch, 1) as master, trio.open_nursery() as nursery:
        first = Call(HELLO)
        first.start(switch.open_request(ECHO, first.deliver, admitted=first.admitted))
        nursery.start_soon(first.send_body)
        await take(master)
        await _leave_while_waiting(switch, 3)
        assert switch.snapshot()["queue"]["total"] == {"queued": 1, "abandoned": 1}
        assert master.untaken() == []
        assert len(switch.alarms) == 0
        first.cancel()
        nursery.cancel_scope.cancel()
