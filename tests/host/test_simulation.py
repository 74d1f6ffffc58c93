"""The law of the terminal, under a seed: hosts, a switch and cartridges that crash, cheat and call each other.

Virtual time, no processes; a failing seed replays.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import trio

from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.host.cartridge import Cartridge
from capdag.relay import Request, Switch, open_switch
from capdag.transport import local_link_pair
from capdag.wire import (
    RESPONSE,
    TERMINAL_TYPES,
    CancelReason,
    FrameType,
    FrameView,
    body_end_frame,
    credit_frame,
    err_frame,
)
from tests.host.simulated import CAPS, NO_LUCK, Flow, Grants, SimulatedProcess, as_a_link_reads

SETTINGS = HostSettings(
    first_pause=0.05, longest_pause=0.2, idle_timeout=2.0, heartbeat_interval=3, heartbeat_timeout=1
)


class AsALinkReads:
    """Gives a host the relay's frames as a link over descriptors does."""

    def __init__(self, host: HostRuntime) -> None:
        self.deliver = lambda batch: host.receiver.deliver_parcels(as_a_link_reads(batch))
        self.closed = host.receiver.closed


class Requester:
    """One request of a caller at the switch, moved on at random."""

    def __init__(self, switch: Switch, cap: str, random: Random) -> None:
        self.random = random
        self.came: list[FrameView] = []
        self.seen = 0
        self.admitted = False
        self.grants = Grants(0)
        self.request: Request = switch.open_request(cap, self.came.extend, admitted=self._go)

    def _go(self, request: Request) -> None:
        self.admitted = True
        self.body = Flow(request.rid, None, request.limits.initial_credit)
        self.grants = Grants(request.limits.initial_credit)

    @property
    def terminals(self) -> list[FrameView]:
        return [view for view in self.came if view.type in TERMINAL_TYPES]

    def step(self) -> None:
        if not self.admitted:
            return
        for view in self.came[self.seen :]:
            if view.type is FrameType.CHUNK:
                self.grants.took(view)
            elif view.type is FrameType.CREDIT and view.stream_id in self.body.credit:
                self.body.credit[view.stream_id] += view.fields[19]
        self.seen = len(self.came)
        for view, owed in self.grants.some(self.random, 0.5):
            self.request.send([credit_frame(view.id, str(view.stream_id), owed, RESPONSE)])
        choice = self.random.random()
        ready = [stream for stream in self.body.open if self.body.credit[stream] > 0]
        if choice < 0.03:
            self.request.cancel(CancelReason(), force_kill=self.random.random() < 0.2)
        elif self.body.ended:
            pass
        elif choice < 0.3 and len(self.body.credit) < 3:
            self.request.send([self.body.start(f"arg{len(self.body.credit)}")])
        elif choice < 0.7 and ready:
            self.request.send([self.body.chunk(ready[0])])
        elif choice < 0.8 and self.body.open:
            self.request.send([self.body.stop(self.body.open[0])])
        elif choice > 0.9:
            self.body.ended = True
            rid = self.request.rid
            self.request.send([err_frame(rid, NO_LUCK) if choice > 0.98 else body_end_frame(rid)])


@asynccontextmanager
async def simulated_hosts(switch: Switch, random: Random, split: bool, misdeeds: float) -> AsyncIterator[list[Any]]:
    """Run the simulated cartridges on one host, or the last on a host of its own; give the hosts.

    At the end nobody may have been sent more than it had granted.
    """
    all_grants: list[Grants] = []
    records = [CartridgeRecord(cap, ["simulated"], [{"urn": cap}]) for cap in CAPS]
    hosts = []
    async with trio.open_nursery() as nursery:
        for number, part in enumerate([records[:2], records[2:]] if split else [records]):
            ours, theirs = local_link_pair(f"host{number}")
            host = HostRuntime(part, theirs, None, SETTINGS)
            host._x.launch = _launcher(host, random, misdeeds, all_grants)
            theirs.connect(AsALinkReads(host))
            ours.connect(switch.attach(ours, f"host{number}"))
            await nursery.start(host.run)
            hosts.append(host)
        for cap in CAPS:
            await switch.wait_for(cap)
        yield hosts
        assert [grants.faults for grants in all_grants if grants.faults] == []
        for host in hosts:
            await host.shutdown()
        nursery.cancel_scope.cancel()


def _launcher(host: HostRuntime, random: Random, misdeeds: float, all_grants: list[Grants]) -> Any:
    def launch(cartridge: Cartridge) -> None:
        process = SimulatedProcess(cartridge, host, None)
        process.random, process.host, process.misdeeds, process.caps = random, host, misdeeds, [cartridge.id]
        process.all_grants = all_grants
        cartridge.limits, cartridge.muted, cartridge.cancelling = host.settings.limits, False, 0
        host._sessions[cartridge] = process
        assert host._nursery is not None
        host._nursery.start_soon(process.run)

    return launch


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(100):
        while not condition():  # noqa: ASYNC110 - the clock is virtual
            await trio.sleep(0.1)


@pytest.mark.parametrize("split", [False, True], ids=["one host", "two hosts"])
@pytest.mark.parametrize("misdeeds", [0.0, 0.02], ids=["well behaved", "misbehaving"])
@pytest.mark.parametrize("seed", range(3))
async def test_every_request_gets_one_terminal_and_nothing_remains(
    seed: int, misdeeds: float, split: bool, autojump_clock: Any
) -> None:
    """H24."""
    random = Random(seed)
    requesters: list[Requester] = []
    async with open_switch() as switch, simulated_hosts(switch, random, split, misdeeds) as hosts:
        for _ in range(600):
            if random.random() < 0.15:
                cap = random.choice(CAPS)
                with suppress(RequestFailedError):  # while it is unhealthy, nobody serves it
                    requesters.append(Requester(switch, cap, random))
            live = [requester for requester in requesters if not requester.terminals]
            for requester in random.sample(live, min(len(live), 3)):
                requester.step()
            await trio.sleep(random.random() / 200)
        for host in hosts:
            for process in host._sessions.values():
                process.calm = True
        for requester in requesters:
            requester.request.cancel()
        await until(lambda: all(requester.terminals for requester in requesters))
        await until(lambda: not any(host.snapshot()["protocol"]["outgoing_rids"] for host in hosts))
        await until(lambda: not any(host.snapshot()["protocol"]["incoming_rxids"] for host in hosts))
        assert [requester.grants.faults for requester in requesters if requester.grants.faults] == []
        assert all(len(requester.terminals) == 1 for requester in requesters)
        assert all(requester.came[-1].type in TERMINAL_TYPES for requester in requesters)
        for host in hosts:
            for cartridge in host._roster:
                assert (cartridge.rows, cartridge.calls, cartridge.cancelling) == ({}, {}, 0)
                assert not cartridge.waiting
                assert cartridge.has_run
            if not misdeeds:
                assert host.snapshot()["protocol"]["drops"]["by_reason"].keys() <= {"cancelled"}
        assert switch.snapshot()["requests"]["active"] == []
        assert len(requesters) > 50
