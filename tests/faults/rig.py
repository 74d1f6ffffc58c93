"""A switch and a host over links that the test can cut at any byte, in memory and in virtual time."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from trio.testing import memory_stream_pair

from capdag.client import Argument, Client
from capdag.errors import RequestFailedError
from capdag.host import HostRuntime, HostSettings
from capdag.relay import Switch, open_switch
from capdag.transport import LocalLink, StreamLink, local_link_pair
from capdag.wire import Frame, FrameSplitter, FrameType, FrameView, NetworkPolicy, inspect, view_of
from tests.misbehave import CALL, CAP, GOOD, MISDEEDS, Cartridge

RESIDENTS = {"served": [CAP, GOOD], "caller": [CALL]}

ROUTES = ("to the host", "to the switch")

PIECE = b"x" * 300


class Resident:
    """A cartridge of `tests.misbehave` inside this process, which serves `caps`. CALL calls GOOD."""

    def __init__(self, misdeed: str, caps: Sequence[str], link: LocalLink) -> None:
        kind = MISDEEDS[misdeed]

        class Linked(kind):  # type: ignore[misc, valid-type]
            def send_as_is(self, frame: Frame) -> None:
                link.send([view_of(frame)])

        os.environ["CAPDAG_CONFIG"] = json.dumps({"caps": list(caps), "called": GOOD})
        self.cartridge: Cartridge = Linked(misdeed, [])
        del os.environ["CAPDAG_CONFIG"]
        link.connect(self)

    def deliver(self, batch: Sequence[FrameView]) -> None:
        for view in batch:
            self.cartridge.take(view)
        self.cartridge.seen.clear()  # kept for tests that look

    def closed(self, reason: str) -> None: ...


class Wire:
    """What lies between two ends of a link. Each direction passes its bytes on until `cut_after` of them have passed.

    Then both sides find the connection closed. Direction 0 is to the host, 1 to the switch.
    """

    def __init__(self, direction: int = 0, cut_after: float = float("inf"), delay: float = 0.0) -> None:
        self.passed = [b"", b""]
        self._direction = direction
        self._cut_after = cut_after
        self._delay = delay
        self._scope = trio.CancelScope()
        self._flows = [trio.Event(), trio.Event()]
        for flows in self._flows:
            flows.set()

    def stall(self, direction: int) -> None:
        """Pass nothing on in a direction from here on, and read nothing of it."""
        self._flows[direction] = trio.Event()

    async def run(self, ends: tuple[trio.abc.Stream, trio.abc.Stream]) -> None:
        """Pass bytes on between the two ends until the cut, or until one end closes."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                for direction in (0, 1):
                    nursery.start_soon(self._pass, direction, ends[1 - direction], ends[direction])
        for end in ends:
            await trio.aclose_forcefully(end)

    def cut(self) -> None:
        """End the connection now."""
        self._scope.cancel()

    async def _pass(self, direction: int, source: trio.abc.Stream, target: trio.abc.Stream) -> None:
        room = self._cut_after if direction == self._direction else float("inf")
        try:
            while room > 0 and (data := await source.receive_some(int(min(room, 65_536)))):
                room -= len(data)
                self.passed[direction] += bytes(data)
                if self._delay:
                    await trio.sleep(self._delay)
                await self._flows[direction].wait()
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        await trio.sleep(0.001)  # what has passed is read before the end is
        self.cut()


class Rig:
    """The switch, the host with a cartridge in this process, and the wires between them, one at a time."""

    def __init__(self, switch: Switch, host: HostRuntime, nursery: trio.Nursery) -> None:
        self.switch = switch
        self.host = host
        self.client = Client(switch)
        self._nursery = nursery

    async def connect(self, wire: Wire) -> trio.Event:
        """Join switch and host by a wire; returns what is set once both links have ended."""
        (near, left), (right, far) = memory_stream_pair(), memory_stream_pair()
        over = trio.Event()

        async def run() -> None:
            up = StreamLink("host", near, close=lambda: None)
            down = StreamLink("relay", far, close=lambda: None)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.run, (right, left))
                nursery.start_soon(self._run_link, up, self.switch.attach(up, "host"), near)
                nursery.start_soon(self._run_link, down, self.host.attach_relay(down), far)
            over.set()

        self._nursery.start_soon(run)
        await trio.lowlevel.checkpoint()
        return over

    @staticmethod
    async def _run_link(link: StreamLink, receiver: object, stream: trio.abc.Stream) -> None:
        await link.run(receiver)  # type: ignore[arg-type]
        await trio.aclose_forcefully(stream)

    async def ask(self, cap: str, pieces: int = 3) -> str:
        """Call, and return how it ended."""
        data = PIECE * pieces
        try:
            answer = await self.client.collect(cap, [Argument("media:octets", data)])
        except RequestFailedError as error:
            return error.code
        return "answered" if answer.value == data else f"wrong: {answer.value!r}"

    async def until(self, ready: Callable[[], object], seconds: float = 100.0) -> None:
        with trio.fail_after(seconds):
            while not ready():  # noqa: ASYNC110
                await trio.sleep(0.01)

    async def nothing_is_left(self) -> None:
        """Wait until no table holds anything, and check what is counted."""

        def empty() -> bool:
            protocol = self.host.snapshot()["protocol"]
            switch = self.switch.snapshot()
            held = [protocol["incoming_rxids"], protocol["outgoing_rids"], len(switch["requests"]["active"])]
            return not any(held) and self.host.snapshot()["debt"] == 0

        await self.until(empty)
        assert len(self.switch.alarms) <= 1
        assert self.switch.snapshot()["routing_gc_evicted_total"] == 0


@asynccontextmanager
async def rig(misdeed: str = "Nothing") -> AsyncIterator[Rig]:
    """Run a switch and a host with two cartridges; they are not joined yet."""
    settings = HostSettings(policy=NetworkPolicy.NO_TELEMETRY, republish_interval=1e6, heartbeat_interval=1e7)
    async with open_switch() as switch, trio.open_nursery() as nursery:
        host = HostRuntime([], None, None, settings)
        await nursery.start(host.run)
        for name, caps in RESIDENTS.items():  # a call goes from one to the other
            near, far = local_link_pair(name)
            Resident(misdeed, caps, far)
            await host.attach_cartridge(name, near)
        async with trio.open_nursery() as wires:
            yield Rig(switch, host, wires)
            wires.cancel_scope.cancel()
        await host.shutdown()
        nursery.cancel_scope.cancel()


def positions(passed: bytes) -> list[int]:
    """Return where to cut: at every border of a frame, around it, within its length and in its middle."""
    found, offset, splitter = {0}, 0, FrameSplitter()
    for body in splitter.feed(passed):
        size = 4 + len(body)
        found |= {offset + step for step in (2, 4, size // 2, size - 1, size)}
        offset += size
    return sorted(found)


def types(passed: bytes) -> list[FrameType]:
    """Return the types of the frames in a direction."""
    return [inspect(body).type for body in FrameSplitter().feed(passed)]
