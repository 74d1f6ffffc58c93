"""The switch as it grows: what a frame and a request cost with 1 to 32 hosts, and a look-up among 10,000 caps (R7).

CPU time, so that other programs disturb it less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count, islice
from random import Random
from statistics import median
from time import process_time
from typing import Any

from capdag.relay import Request, Switch, SwitchSettings
from capdag.relay._admission import Admission
from capdag.relay._places import Install, Line
from capdag.transport import local_link_pair
from capdag.urn import CapTable, CapUrn
from capdag.wire import (
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    Frame,
    FrameType,
    FrameView,
    PoolState,
    end_frame,
    fnv1a_64,
    view_of,
)
from capdag.wire.notify import notify_frame

from .rounds import measure, report, time_loops

HOSTS = (1, 2, 4, 8, 16, 32)
CARTRIDGES = 8
IN_FLIGHT = 2_000
SLOTS = 2_000
BURST = 8
"""CHUNKs of one read."""
ENDLESS = DEFAULT_LIMITS._replace(initial_credit=2**31)
"""No CHUNK waits for credit: what is measured is the way of a frame, not that of its grant."""
FLAT = 1.3
CAPS = 10_000
ROUNDS = 15


def cap_of(host: int, cartridge: int) -> str:
    """Return the cap of one cartridge."""
    return f"cap:cartridge=c{cartridge};chat;host=h{host};in=media:octets;out=media:octets"


class Host:
    """The far end of a link: it proves its identity, and keeps what it is asked for."""

    def __init__(self, switch: Switch, number: int) -> None:
        self.asked: list[FrameView] = []
        near, self._link = local_link_pair(f"h{number}")
        self._link.connect(self)
        near.connect(switch.attach(near, f"h{number}"))
        installs = [_install(cap_of(number, cartridge)) for cartridge in range(CARTRIDGES)]
        self.send([view_of(notify_frame(ENDLESS, installs))])

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Take frames of the switch."""
        for view in batch:
            if view.type is FrameType.REQ and view.fields[10] != IDENTITY_CAP:
                self.asked.append(view)
            elif view.type is FrameType.CHUNK:
                payload = view.fields[6]
                stream: dict[str, Any] = {"stream_id": "out"}
                self.send(
                    view_of(Frame(kind, view.id, **stream, **fields))
                    for kind, fields in (
                        (FrameType.STREAM_START, {"media_urn": "media:"}),
                        (FrameType.CHUNK, {"payload": payload, "chunk_index": 0, "checksum": fnv1a_64(payload)}),
                        (FrameType.STREAM_END, {"chunk_count": 1}),
                    )
                )
                self.send([view_of(end_frame(view.id))])

    def closed(self, reason: str) -> None:
        """The switch never closes a link here."""
        raise AssertionError(reason)

    def send(self, batch: Iterable[FrameView]) -> None:
        """Send frames as one read."""
        self._link.send(list(batch))


def _install(cap: str) -> Mapping[str, Any]:
    pool = {"declared": SLOTS, "configured": SLOTS, "active": 0, "queued": 0}
    caps = [{"urn": IDENTITY_CAP}, {"urn": cap}]
    return {
        "registry_url": None,
        "id": cap,
        "channel": "release",
        "version": "1",
        "cap_groups": [{"name": "g", "caps": caps}],
        "runtime_stats": {"running": True, "pools": {cap: pool, "all": pool}},
    }


class Network:
    """A switch with hosts, and 2,000 requests spread over all their cartridges."""

    def __init__(self, hosts: int) -> None:
        self._switch = Switch(SwitchSettings(limits=ENDLESS, table_limit=10 * IN_FLIGHT), process_time)
        self._hosts = [Host(self._switch, number) for number in range(hosts)]
        self._caps = [cap_of(host, cartridge) for cartridge in range(CARTRIDGES) for host in range(hosts)]
        self._requests: list[Request] = []
        self._delivered = 0
        self.open(IN_FLIGHT)
        self._starts()
        self._batches = list(self._chunks())

    def _deliver(self, batch: list[FrameView]) -> None:
        self._delivered += len(batch)

    def open(self, number: int) -> None:
        """Open requests, each to the next cartridge."""
        for index in range(number):
            self._requests.append(self._switch.open_request(self._caps[index % len(self._caps)], self._deliver))

    def _starts(self) -> None:
        for host in self._hosts:
            host.send(
                view_of(Frame(FrameType.STREAM_START, req.id, routing_id=req.xid, stream_id="s", media_urn="media:"))
                for req in host.asked
            )

    def _chunks(self) -> Iterable[tuple[Host, list[FrameView]]]:
        """Yield one CHUNK of every request, as reads of one host after another.

        In random order: a single host's requests would else lie in memory as they are met, and those of many not.
        """
        random = Random(1)
        parts = {host: iter(random.sample(host.asked, len(host.asked))) for host in self._hosts}
        while parts:
            for host, asked in list(parts.items()):
                batch = [_chunk(req) for req in islice(asked, BURST)]
                if batch:
                    yield host, batch
                else:
                    del parts[host]

    def route(self, rounds: int) -> float:
        """Send a CHUNK of every request so many times; return the microseconds of one."""
        before, start = self._delivered, process_time()
        for _ in range(rounds):
            for host, batch in self._batches:
                host.send(batch)
        seconds = process_time() - start
        if self._delivered - before != rounds * IN_FLIGHT:
            raise SystemExit("frames went astray")
        return seconds / (rounds * IN_FLIGHT) * 1e6

    def dispatch(self, number: int) -> float:
        """Open more requests and end them; return the microseconds of one, without those its END takes to build."""
        known = {host: len(host.asked) for host in self._hosts}
        start = process_time()
        self.open(number)
        seconds = process_time() - start
        new = self._requests[-number:]
        del self._requests[-number:]
        ends = [
            (host, [view_of(end_frame(req.id, xid=req.xid)) for req in host.asked[known[host] :]]) for host in known
        ]
        for host, old in known.items():
            del host.asked[old:]
        start = process_time()
        for host, batch in ends:
            host.send(batch)
        seconds += process_time() - start
        if not all(request.ended for request in new):
            raise SystemExit("requests did not end")
        return seconds / number * 1e6


def _chunk(req: FrameView) -> FrameView:
    payload = b"\x58\x1cone token of an answer, or so"
    fields = {"chunk_index": 0, "checksum": fnv1a_64(payload), "payload": payload}
    return view_of(Frame(FrameType.CHUNK, req.id, routing_id=req.xid, stream_id="s", **fields))  # type: ignore[arg-type]


def main() -> None:
    """Print R7."""
    networks = {hosts: Network(hosts) for hosts in HOSTS}
    _table("a routed frame", {hosts: partial(network.route, 3) for hosts, network in networks.items()})
    _table("a request, from REQ to END", {hosts: partial(network.dispatch, 500) for hosts, network in networks.items()})
    _look_ups()
    _slots()


def _table(what: str, variants: Mapping[int, Callable[[], float]]) -> None:
    figures = measure({f"{hosts} hosts x {CARTRIDGES}": variant for hosts, variant in variants.items()}, ROUNDS)
    names = list(figures)
    report(f"R7: {what}, {IN_FLIGHT} in flight", "us", figures, names[0])
    ratios = [last / first for first, last in zip(figures[names[0]], figures[names[-1]], strict=True)]
    ratio = median(ratios)
    print(f"  {names[-1]} beside {names[0]}: x{ratio:.2f}, floor x{FLAT}, goal flat: {_verdict(ratio <= FLAT)}")


def _look_ups() -> None:
    table: CapTable[int] = CapTable()
    for number in range(CAPS):
        table.register(CapUrn.parse(cap_of(number % 32, number // 32)), number)
    new = count()

    def first() -> float:
        wanted = CapUrn.parse(f"{cap_of(7, 7)};new=n{next(new)}")
        return time_loops(lambda _: table.best_match(wanted), 1) * 1e6

    asked = CapUrn.parse(cap_of(7, 7))

    def again() -> float:
        return time_loops(lambda loops: [table.best_match(asked) for _ in range(loops)], 10_000) * 1e6

    figures = measure({"the first of a request's text": first, "repeated": again})
    print(f"\nR7: a look-up among {CAPS:,} caps  (us)")
    for (name, values), floor, goal in zip(figures.items(), (1_000, 5), (300, 2), strict=True):
        _line(name, median(values), floor, goal)


def _slots() -> None:
    """Print what admission adds to a request that need not wait."""
    admission: Admission[str, None] = Admission(1)
    line: Line[str] = Line(CapUrn.parse(cap_of(0, 0)))
    install = Install("h0")
    install.update(
        True, {line.text: PoolState(1, 1), "shared": PoolState(1, 1, caps=(line.text,)), "all": PoolState(1, 1)}
    )
    line.put("h0", install)

    def pass_through(loops: int = 10_000) -> float:
        start = process_time()
        for _ in range(loops):
            slot = admission.take(line, "")
            assert slot is not None
            admission.release(slot)
        return (process_time() - start) / loops * 1e6

    figures = measure({"three pools": pass_through})
    print("\na slot taken and given back  (us)")
    _line("three pools", median(figures["three pools"]), 5, 2)


def _line(name: str, found: float, floor: float, goal: float) -> None:
    print(f"  {name:<34} {found:>10.2f}  floor {floor}, goal {goal}: {_verdict(found <= floor)}")


def _verdict(kept: bool) -> str:
    return "kept" if kept else "MISSED"
