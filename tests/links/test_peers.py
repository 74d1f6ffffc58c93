"""What an end does about its peer: it notices one that has vanished, and knows one that comes back."""

from __future__ import annotations

import socket
from functools import partial

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from capdag.cli._gateway_half import Guest
from capdag.cli._host_half import Seat
from capdag.host import HostRuntime
from capdag.relay import open_switch
from capdag.transport import StreamLink
from capdag.transport.background import background
from capdag.transport.sockets import watch_peer
from capdag.wire import DEFAULT_LIMITS, FrameType
from capdag.wire.notify import notify_frame
from tests.links.test_kinds import End
from tests.relay.masters import ECHO, Master, install


async def test_the_system_watches_the_peer_of_a_tcp_connection() -> None:
    """K14."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listeners[0], await trio.open_tcp_stream(*listeners[0].socket.getsockname()) as stream:
        watch_peer(stream.socket, 12.0)

        def setting(level: int, name: int) -> int:
            return int(stream.socket.getsockopt(level, name))

        assert setting(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert setting(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert setting(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 6
        assert setting(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
        assert setting(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 12_000
        (await listeners[0].accept()).socket.close()


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_host_that_dials_in_is_known_by_its_id(comes_back: bool, autojump_clock: MockClock) -> None:
    """K21: its former link, half open, is ended for it; another host gets a slot of its own."""
    async with open_switch() as switch, background() as nursery:
        links: list[StreamLink] = []
        for number, host_id in enumerate(["0123456789", "0123456789" if comes_back else "other-host"]):
            near, far = memory_stream_pair()
            up = StreamLink(f"tcp:127.0.0.1:7070#{number}", near, close=lambda: None)
            down = StreamLink("relay", far, close=lambda: None)
            master = Master(down, "host")
            nursery.start_soon(up.run, Guest(switch, up, is_named=False))
            nursery.start_soon(down.run, master)
            await wait_all_tasks_blocked()
            assert master.seen == [], "POLICY is for a host that has said what it is"
            master.send(notify_frame(DEFAULT_LIMITS, [install(ECHO)], None, host_id))
            await master.next(FrameType.POLICY)
            await master.answer_identity()
            await wait_all_tasks_blocked()
            links.append(up)
        ready = {name for name, host in switch.snapshot()["hosts"].items() if host["state"] == "ready"}
        assert ready == {
            f"tcp:127.0.0.1:7070#{name}" for name in (["01234567"] if comes_back else ["01234567", "other-ho"])
        }
        assert (links[0].end is not None) is comes_back
        assert links[1].end is None


async def test_a_host_serves_one_engine_at_a_time(autojump_clock: MockClock) -> None:
    """K20: another one is turned away at once; when the first has gone, the next is offered the same host."""
    host = HostRuntime([], None, None)
    seat = Seat(host)
    async with background(host.run) as nursery:
        await wait_all_tasks_blocked()
        notices: list[bytes] = []
        for _ in range(2):
            near, far = memory_stream_pair()
            engine, ours = End(), StreamLink("engine", far, close=lambda: None)
            nursery.start_soon(engine.use, StreamLink("host", near, close=lambda: None))
            nursery.start_soon(seat.serve, ours)
            await engine.until(partial(bool, engine.bodies))
            notices.append(engine.bodies[0])
            late = StreamLink("late", memory_stream_pair()[0], close=lambda: None)
            await seat.serve(late)
            assert late.end is not None
            with trio.move_on_after(10):
                await seat.free()
                raise AssertionError("the seat is taken")
            ours.close()
            await seat.free()
        assert notices[0] == notices[1]
        seat.close()
        late = StreamLink("late", memory_stream_pair()[0], close=lambda: None)
        await seat.serve(late)
        assert late.end is not None
