"""The host as a router, beside a byte forwarder in C, a bare poll loop, a direct cartridge and the public host.

Goals R1 to R5: small frames, large frames, round trips, single tokens, many requests in flight.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic_ns, perf_counter
from typing import NamedTuple

import psutil

from capdag.wire import TERMINAL_TYPES, FrameType, body_end_frame, decode_value, encode_value

from .lean import packed, stream
from .rounds import ROUNDS, measure, ratio, report
from .routes import (
    PEER_PYTHON,
    REPAIRED,
    ROOT,
    SHIPPED,
    XID,
    Caller,
    Route,
    Shape,
    direct,
    forwarder,
    host,
    poll_loop,
    public,
    req,
)

# Figures


def _cpu(caller: Caller) -> float:
    """Return the CPU seconds of the routing process."""
    tasks = Path(f"/proc/{caller.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _up(caller: Caller, count: int, size: int, spread: int = 0) -> tuple[float, float]:
    """Cartridge to caller: frames a second, and microseconds of the router's CPU a frame."""
    before = _cpu(caller)
    request = caller.ask(f"blast {count} {size} {spread}")
    caller.send(request)
    seconds = caller.drain(caller.last_id, count + 2)
    return count / seconds, (_cpu(caller) - before) / count * 1e6


def _down(caller: Caller, count: int, size: int) -> tuple[float, float]:
    """Caller to cartridge: the same."""
    rid = caller.new_id()
    payloads = [encode_value(b"sink %d" % count), *[encode_value(bytes(size))] * count]
    start, script, *chunks, end = stream(rid, XID, iter(payloads), 1)
    before, began = _cpu(caller), perf_counter()
    caller.send(req(rid) + start + script)
    caller.feed(chunks)
    caller.send(end + packed(body_end_frame(rid, xid=XID, seq=count + 4)))
    caller.until_ends(1)
    return count / (perf_counter() - began), (_cpu(caller) - before) / count * 1e6


def _echo(caller: Caller, count: int) -> float:
    """Return the median round trip in microseconds."""
    times = []
    for _ in range(count):
        request = caller.ask("echo " + "x" * 115)
        start = perf_counter()
        caller.send(request)
        caller.until_ends(1)
        times.append(perf_counter() - start)
    return median(times) * 1e6


def _tokens(caller: Caller, children: int, count: int = 200) -> tuple[float, float]:
    """Return the median one-way time of a token in microseconds, and the router's CPU a token."""
    before, ways, ends = _cpu(caller), [], 0
    caller.send(b"".join(caller.ask(f"tokens {count} 2000", child) for child in range(children)))
    while ends < children:
        view = caller.next()
        if view.type is FrameType.CHUNK:
            ways.append(monotonic_ns() - int.from_bytes(decode_value(view.fields[6]), "big"))
        ends += view.type in TERMINAL_TYPES
    return median(ways) / 1e3, (_cpu(caller) - before) / (count * children) * 1e6


def _in_flight(caller: Caller, count: int) -> tuple[int, float]:
    """Have so many requests in flight at once; return how many ended well and the seconds it took."""
    requests = b"".join(caller.ask(f"hold {count}") for _ in range(count))
    start = perf_counter()
    caller.send(requests)
    return caller.until_ends(count), perf_counter() - start


def _rss(caller: Caller) -> float:
    return float(psutil.Process(caller.process.pid).memory_info().rss / 2**20)


# Tables

_UP, _DOWN = "cartridge to caller", "caller to cartridge"


class Goal(NamedTuple):
    """A line of the summary: what was measured of our host, the floor that must hold, and what we are after."""

    row: str
    what: str
    value: float
    unit: str
    floor: float
    goal: float

    def line(self) -> str:
        """Return it as text. More is better where the goal is above the floor."""
        more = self.goal > self.floor
        reached = [bound for bound in (self.floor, self.goal) if (self.value >= bound) == more or self.value == bound]
        verdict = ("MISSED", "floor held", "goal reached")[len(reached)]
        sign = ">=" if more else "<="
        bounds = f"{sign} {self.floor:g}", f"{sign} {self.goal:g}"
        return (
            f"  {self.row}  {self.what:<64} {self.value:>8.2f} {self.unit:<4} {bounds[0]:>8} {bounds[1]:>8}  {verdict}"
        )


class Measured(NamedTuple):
    """What one table shows: the figures of each route, round by round, and the CPU of each (us)."""

    figures: Mapping[str, list[float]]
    cpu: Mapping[str, list[float]]

    def beside(self, other: str) -> float:
        """Return our host's ratio to another route, pair by pair."""
        return ratio(self.figures["host"], self.figures[other])

    def own_cpu(self) -> float:
        """Return what a frame costs our host (us)."""
        return median(self.cpu["host"])


def _paired(
    title: str, unit: str, callers: Mapping[str, Caller], run: Callable[[Caller], tuple[float, float]], base: str
) -> Measured:
    """Measure what every route takes in turn, and print both figures of `run`."""
    cpu: dict[str, list[float]] = {name: [] for name in callers}

    def one(name: str) -> float:
        figure, micros = run(callers[name])
        cpu[name].append(micros)
        return figure

    figures = measure({name: partial(one, name) for name in callers})
    report(title, unit, figures, base)
    cpu = {name: values[-ROUNDS:] for name, values in cpu.items()}
    for name, values in cpu.items():
        if name != "direct":
            print(f"  {name:<34} {median(values):>10.2f} us of CPU each")
    return Measured(figures, cpu)


@contextmanager
def _routes(shape: Shape, routes: Mapping[str, Callable[[Shape], Route]]) -> Iterator[dict[str, Caller]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(route(shape)) for name, route in routes.items()}


def _compile(folder: str) -> Path:
    program = Path(folder) / "forwarder"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("the byte forwarder needs a C compiler: install gcc")
    subprocess.run([compiler, "-O2", "-o", program, ROOT / "benchmarks" / "forwarder.c"], check=True)
    return program


def main() -> None:
    """Print R1 to R5, and at the end all of them beside their goals."""
    with tempfile.TemporaryDirectory() as folder:
        routes: dict[str, Callable[[Shape], Route]] = {
            "host": host, "direct": direct, "C forwarder": forwarder(_compile(folder)), "poll loop": poll_loop
        }  # fmt: skip
        if PEER_PYTHON.exists():
            routes |= {REPAIRED: public("repaired"), SHIPPED: public("shipped")}
        else:
            print("the public host is left out: the README's test command makes its environment")
        goals = [*_small(routes), *_large(routes), *_latency(routes)]
    _show([*goals, *_many()])


def memory() -> None:
    """Print R5 alone: the host's memory after 1,000, 10,000 and 100,000 requests."""
    _show(_many())


def _show(goals: Iterable[Goal]) -> None:
    lines = [goal.line() for goal in goals]
    print(f"\n  {'our host':<68} {'measured':>13} {'floor':>8} {'goal':>8}", *lines, sep="\n")


def _quick(routes: Mapping[str, Callable[[Shape], Route]]) -> Mapping[str, Callable[[Shape], Route]]:
    return {name: route for name, route in routes.items() if name != SHIPPED}


def _small(routes: Mapping[str, Callable[[Shape], Route]]) -> Iterator[Goal]:
    rival = REPAIRED if REPAIRED in routes else "C forwarder"
    with _routes(Shape(), _quick(routes)) as callers:
        ways = (
            (_UP, lambda caller: _up(caller, 20_000, 30), (20, 30, 3.5, 2.3)),
            (_DOWN, lambda caller: _down(caller, 20_000, 30), (40, 80, 1.5, 0.8)),
        )
        for way, run, (floor, goal, cpu_floor, cpu_goal) in ways:
            found = _paired(f"R1: 30-byte CHUNKs in blocks, {way}", "frames/s", callers, run, rival)
            if rival == REPAIRED:
                yield Goal("R1", f"small frames, {way}, beside the {rival}", found.beside(rival), "x", floor, goal)
            yield Goal("R1", f"small frames, {way}, CPU a frame", found.own_cpu(), "us", cpu_floor, cpu_goal)
        name = f"R1: CHUNKs of 10 to 50 bytes in blocks, {_UP}"
        found = _paired(name, "frames/s", callers, lambda caller: _up(caller, 20_000, 10, 40), rival)
        yield Goal("R1", f"frames of many sizes, {_UP}, CPU a frame", found.own_cpu(), "us", 3.5, 2.3)


def _large(routes: Mapping[str, Callable[[Shape], Route]]) -> Iterator[Goal]:
    with _routes(Shape(1, 32, 262_144), _quick(routes)) as callers:
        name = f"R2: 256 KiB CHUNKs, {_UP}"
        found = _paired(name, "frames/s", callers, lambda caller: _up(caller, 256, 262_000), "C forwarder")
    yield Goal("R2", "256 KiB frames, beside the C forwarder", found.beside("C forwarder"), "x", 0.6, 0.85)
    if REPAIRED in callers:
        yield Goal("R2", f"256 KiB frames, beside the {REPAIRED}", found.beside(REPAIRED), "x", 1.2, 1.5)


def _latency(routes: Mapping[str, Callable[[Shape], Route]]) -> Iterator[Goal]:
    with _routes(Shape(), routes) as callers:
        figures = measure(
            {name: partial(_echo, caller, 20 if name == SHIPPED else 300) for name, caller in callers.items()}
        )
        report("R3: echo of 120 bytes, one at a time", "us", figures, "direct")
    yield Goal("R3", "echo, beside no host at all", ratio(figures["host"], figures["direct"]), "x", 2.5, 1.9)
    if REPAIRED in callers:
        yield Goal("R3", f"echo, beside the {REPAIRED}", ratio(figures["host"], figures[REPAIRED]), "x", 0.6, 0.4)
    with _routes(Shape(), _quick(routes)) as callers:
        found = _paired("R4: one token a write, one way", "us", callers, lambda caller: _tokens(caller, 1), "direct")
    yield Goal("R4", "a token on its way, beside no host at all", found.beside("direct"), "x", 2.5, 1.9)
    with _routes(Shape(8), {name: routes[name] for name in ("host", "poll loop")}) as callers:
        name = "R4: the same from 8 cartridges"
        found = _paired(name, "us", callers, lambda caller: _tokens(caller, 8), "poll loop")
    cpu = ratio(found.cpu["host"], found.cpu["poll loop"])
    yield Goal("R4", "CPU a token with 8 cartridges, beside a bare poll loop", cpu, "x", 3.0, 2.0)


def _many() -> Iterator[Goal]:
    """Print the host's memory while and after many requests are in flight."""
    with host(Shape(1, 32)) as caller:
        first = _rss(caller)
        print(f"\nR5: requests in flight through the host  (RSS at first {first:.1f} MiB)")
        done, grown = 0, []
        for count, rounds in ((1_000, 1), (1_000, 9), (1_000, 90), (10_000, 1)):
            seconds, good = 0.0, 0
            for _ in range(rounds):
                ended, took = _in_flight(caller, count)
                good, seconds = good + ended, seconds + took
            done += count * rounds
            grown.append(_rss(caller) - first)
            print(
                f"  {rounds:>3} times {count:>6} at once: {good} of {count * rounds} answered in {seconds:.2f} s; "
                f"RSS {grown[-1]:+.1f} MiB after {done} requests"
            )
            if good != count * rounds:
                sys.exit(f"{count * rounds - good} requests were lost")
    yield Goal("R5", "1,000 in flight, more memory", grown[0], "MiB", 6, 1)
    yield Goal("R5", "99,000 more requests, more memory than after the first 1,000", grown[2] - grown[0], "MiB", 1, 0)
