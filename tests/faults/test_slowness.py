"""Links that are slow, stalled or half open, and peers that are frozen: bounded in memory and in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from capdag.cli._gateway_half import Guest, watch_pulse
from capdag.relay import Switch, open_switch
from capdag.relay._masters import CHOKED
from capdag.transport import StreamLink, parse_address
from capdag.transport.background import background
from capdag.transport.websocket import WebSocketStream, shake_as_client, shake_as_server
from capdag.wire import DEFAULT_LIMITS, FrameType
from capdag.wire.notify import notify_frame
from tests.faults.rig import Wire, rig
from tests.faults.test_cuts import conversation
from tests.relay.masters import ECHO, Caller, Master, install, peer_call, ready


async def test_a_slow_link_is_slow_and_nothing_else(autojump_clock: MockClock) -> None:
    """K17."""
    async with rig() as it:
        assert await conversation(it, Wire(delay=3.0)) == ["answered"] * 3
        assert trio.current_time() >= 30


async def test_a_reader_that_stalls_holds_up_its_own_requests_only_and_they_end_with_its_link(
    autojump_clock: MockClock,
) -> None:
    """K17."""
    async with rig() as it:
        wire, ends = Wire(), list[str]()

        async def ask() -> None:
            ends.append(await it.ask("cap:good;in=media:octets;out=media:octets", pieces=1_000))

        over = await it.connect(wire)
        await it.switch.wait_for("cap:good;in=media:octets;out=media:octets")
        wire.stall(0)
        async with trio.open_nursery() as nursery:
            for _ in range(4):  # as many as its pool takes
                nursery.start_soon(ask)
            await trio.sleep(50)
            assert ends == []
            wire.cut()
        assert ends == ["MASTER_DIED"] * 4
        await over.wait()
        await it.nothing_is_left()


@asynccontextmanager
async def wired(switch: Switch, name: str, wire: Wire) -> AsyncIterator[tuple[Master, StreamLink, Guest]]:
    """Attach a scripted host over a wire; gives it, the switch's link and the receiver of that."""
    (near, left), (right, far) = memory_stream_pair(), memory_stream_pair()
    up, down = (StreamLink(name, end, close=lambda: None) for end in (near, far))
    master, guest = Master(down, name), Guest(switch, up, is_named=True)
    async with background() as nursery:
        nursery.start_soon(wire.run, (right, left))
        nursery.start_soon(up.run, guest)
        nursery.start_soon(down.run, master)
        yield master, up, guest


async def prove(master: Master, *installs: dict[str, object]) -> None:
    master.send(notify_frame(DEFAULT_LIMITS, list(installs)))
    await master.next(FrameType.POLICY)
    await master.answer_identity()


async def test_logs_for_a_host_that_does_not_read_are_lost_and_counted(autojump_clock: MockClock) -> None:
    """S17: nothing else bounds them, a cartridge of another host may write as many as it likes."""
    wire = Wire()
    async with (
        open_switch() as switch,
        wired(switch, "stuck", wire) as (stuck, link, _),
        ready(switch, "chatty", "local", ECHO) as chatty,
    ):
        await prove(stuck, install("cap:other"))
        await switch.wait_for("cap:other")
        stuck.send(*peer_call(b"p" * 16, b"\x41x", cap=ECHO))
        answer = (await chatty.take_request()).answer
        wire.stall(0)
        for _ in range(5_000):
            chatty.send(answer.log(level="info", message="m" * 1_000))
        assert link.bytes_queued < CHOKED + 5_000
        drops = switch.snapshot()["drops"]["by_reason"]
        assert drops["overrun"] > 3_000
        chatty.send(answer.start(), answer.chunk(b"\x41x"), answer.stream_end(), answer.end())
        assert switch.snapshot()["requests"]["active"] == []
        wire.cut()
        await stuck.wait_closed()


async def test_a_host_that_is_frozen_is_noticed_by_its_silence(autojump_clock: MockClock) -> None:
    """K16: It says every 2 s that its processes run. One whose processes do not run may be silent for ever."""
    async with open_switch() as switch:
        record = install(ECHO)
        record["runtime_stats"] |= {"pid": 77}
        for frozen in (False, True):
            wire, caller = Wire(), Caller()
            async with wired(switch, "host", wire) as (host, link, guest), trio.open_nursery() as nursery:
                nursery.start_soon(watch_pulse, switch, guest, 20.0)
                await prove(host, record if frozen else install(ECHO))
                await switch.wait_for(ECHO)
                request = switch.open_request(ECHO, caller)
                for _ in range(30):
                    await trio.sleep(2)
                    host.send(notify_frame(DEFAULT_LIMITS, [record if frozen else install(ECHO)]))
                assert link.end is None
                began = trio.current_time()
                if frozen:
                    await until_ended(link)
                    assert 20 <= trio.current_time() - began <= 26
                    assert caller.terminals[0].meta["code"] == "MASTER_DIED"
                    assert "has said nothing for 20 s although its cartridges run" in link.reason
                else:
                    await trio.sleep(1_000)
                    assert link.end is None
                    assert not request.ended
                    wire.cut()
                    await until_ended(link)
                nursery.cancel_scope.cancel()


async def until_ended(link: StreamLink) -> None:
    with trio.fail_after(100):
        while link.end is None:  # noqa: ASYNC110
            await trio.sleep(0.1)


@asynccontextmanager
async def websockets(near: trio.abc.Stream, far: trio.abc.Stream) -> AsyncIterator[tuple[WebSocketStream, ...]]:
    """Open a WebSocket over two ends of a stream."""
    address, found = parse_address("ws://localhost:1/x"), list[WebSocketStream]()

    async def accept(nursery: trio.Nursery) -> None:
        found.append(await shake_as_server(nursery, far, address, None))  # type: ignore[arg-type]

    async with background() as nursery:
        nursery.start_soon(accept, nursery)
        found.insert(0, await shake_as_client(nursery, near, address, None))  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        yield tuple(found)


@pytest.mark.parametrize("stalled", [0, 1])
async def test_a_websocket_whose_peer_vanished_is_ended_by_its_pings(stalled: int, autojump_clock: MockClock) -> None:
    """K15."""
    (near, left), (right, far) = memory_stream_pair(), memory_stream_pair()
    wire, ended = Wire(), trio.Event()
    async with background(partial(wire.run, (right, left))) as nursery, websockets(near, far) as (stream, _):
        nursery.start_soon(stream.keep_alive, 20.0, ended.set)
        await trio.sleep(1_000)
        assert not ended.is_set()
        wire.stall(stalled)
        with trio.fail_after(31):
            await ended.wait()


async def test_two_that_write_much_and_ping_each_other_do_not_stop_reading(autojump_clock: MockClock) -> None:
    """K15: an answer to a ping waits for nobody; the two streams have no room at all between them."""
    data = bytes(1_000_000)

    async def write(stream: WebSocketStream) -> None:
        await stream.send_all(data)

    async def read(stream: WebSocketStream) -> None:
        got = 0
        while got < len(data):
            got += len(await stream.receive_some())

    async def ping(stream: WebSocketStream) -> None:
        for _ in range(20):
            await stream._connection.ping()

    with trio.fail_after(1_000):
        async with websockets(*lockstep_stream_pair()) as streams, trio.open_nursery() as nursery:
            for stream in streams:
                for act in (write, read, ping):
                    nursery.start_soon(act, stream)
