"""One link's flood of small frames leaves the others their turns, however much of it lies ready."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio

from capdag.transport import bytelink, fdlink, socket_link
from capdag.transport.background import background
from capdag.transport.bytelink import LEAST_READ, READ_SIZE, TURN, ByteLink
from capdag.transport.streamlink import StreamLink
from capdag.wire import DEFAULT_LIMITS, Frame, FrameType, FrameView, pack, view_of

FRAME = pack(view_of(Frame(FrameType.HEARTBEAT, bytes(16))), DEFAULT_LIMITS.max_frame)
FLOOD = FRAME * (4 * READ_SIZE // len(FRAME))


def over_a_stream(sock: socket.socket, name: str) -> ByteLink:
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
    return StreamLink(name, stream, close=stream.socket.close)


class Busy:
    """A receiver that needs time for each frame, on a clock of its own; what it got, by the turn it came in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.now = 0.0
        self.turn = 0
        self.by_turn: Counter[int] = Counter()
        self._cost = cost
        for module in (bytelink, fdlink):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def deliver(self, batch: Sequence[FrameView]) -> None:
        self.by_turn[self.turn] += len(batch)
        self.now += self._cost * len(batch)

    def closed(self, reason: str) -> None:
        pass

    async def take_turns(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.turn += 1

    @property
    def frames(self) -> int:
        return sum(self.by_turn.values())


async def flood(busy: Busy, make: Callable[[socket.socket, str], ByteLink]) -> ByteLink:
    near, far = socket.socketpair()
    with far:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(FLOOD))
        far.setblocking(False)
        ready = far.send(FLOOD) // len(FRAME)
        assert ready * len(FRAME) > 2 * READ_SIZE, "as much as two reads take must lie ready"
        link = make(near, "near")
        async with background(busy.take_turns, partial(link.run, busy)):
            with trio.fail_after(5):
                while busy.frames < ready:
                    await trio.lowlevel.checkpoint()
    return link


@pytest.mark.parametrize("make", [socket_link, over_a_stream])
async def test_a_flood_that_takes_long_comes_in_small_turns(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[socket.socket, str], ByteLink]
) -> None:
    """K23."""
    busy = Busy(monkeypatch, cost=TURN / 50)
    await flood(busy, make)
    turns = [count for _, count in sorted(busy.by_turn.items())]
    assert len(turns) > 10
    assert max(turns[6:]) <= 2 * (LEAST_READ // len(FRAME) + 1)  # tasks of one pass of the scheduler go in any order


@pytest.mark.parametrize("make", [socket_link, over_a_stream])
async def test_frames_that_take_little_come_in_full_reads(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[socket.socket, str], ByteLink]
) -> None:
    busy = Busy(monkeypatch, cost=TURN / 50)
    link = await flood(busy, make)
    assert link.read_size < READ_SIZE
    busy = Busy(monkeypatch, cost=0)
    link.read_size = LEAST_READ
    for _ in range(5):
        link._adapt(0.0)
    assert link.read_size == READ_SIZE
    await flood(busy, make)
    assert max(busy.by_turn.values()) >= READ_SIZE // len(FRAME)
