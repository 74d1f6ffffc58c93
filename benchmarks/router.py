"""The host as a router, beside a byte forwarder in C, a bare poll loop, a direct cartridge and the public host.

Goals R1 to R5: small frames, large frames, round trips, single tokens, many requests in flight.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic_ns, perf_counter
from typing import NamedTuple

import psutil

from capdag.wire import (
    DEFAULT_LIMITS,
    RESPONSE,
    TERMINAL_TYPES,
    Frame,
    FrameType,
    FrameView,
    NetworkPolicy,
    body_end_frame,
    credit_frame,
    decode_value,
    encode_value,
    failure_of,
    hello_frame,
    inspect,
    policy_frame,
)

from .lean import STREAM, cap_of, count_frames, packed, stream
from .rounds import ROUNDS, measure, report

ROOT = Path(__file__).parents[1]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
XID = 7
REPAIRED, SHIPPED = "public host, repaired", "public host, as shipped"


Route = AbstractContextManager["Caller"]


class Shape(NamedTuple):
    """What a link is set up for."""

    children: int = 1
    window: int = 4096
    max_chunk: int = 1024

    @property
    def words(self) -> list[str]:
        """The numbers as arguments."""
        return [str(number) for number in self]


class Caller:
    """The far end of a route: non-blocking reads and writes on two descriptors, counted frame by frame."""

    def __init__(self, read_fd: int, write_fd: int, process: subprocess.Popen[bytes], window: int) -> None:
        self.process = process
        self.window = window
        self._read_fd, self._write_fd = read_fd, write_fd
        self._out = memoryview(b"")
        self._buffer, self._position = b"", 0
        self._number = 0
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)

    def send(self, data: bytes) -> None:
        """Queue bytes and write what goes."""
        self._out = memoryview(bytes(self._out) + data)
        self._write()

    def _write(self) -> None:
        try:
            while self._out:
                self._out = self._out[os.write(self._write_fd, self._out) :]
        except BlockingIOError:
            return

    def _fill(self) -> None:
        while True:
            readable, writable, _ = select.select([self._read_fd], [self._write_fd] if self._out else [], [], 60)
            if not readable and not writable:
                raise TimeoutError("nothing came for 60 s: the route has lost a frame")
            if writable:
                self._write()
            if readable:
                data = os.read(self._read_fd, 1 << 18)
                if not data:
                    raise EOFError("the route has ended")
                self._buffer, self._position = self._buffer[self._position :] + data, 0
                return

    def next(self) -> FrameView:
        """Return the next frame."""
        while True:
            count, _, end = count_frames(self._buffer, self._position, 1)
            if count:
                body, self._position = self._buffer[self._position + 4 : end], end
                return inspect(body)
            self._fill()

    def new_id(self) -> bytes:
        """Return the RID of a new request."""
        self._number += 1
        return self.last_id

    @property
    def last_id(self) -> bytes:
        """The RID of the last request."""
        return self._number.to_bytes(16, "big")

    def ask(self, script: str, child: int = 0) -> bytes:
        """Return the bytes of a request whose whole body is its script."""
        rid = self.new_id()
        body = b"".join(stream(rid, XID, iter([encode_value(script.encode())]), 1))
        return _req(rid, child) + body + packed(body_end_frame(rid, xid=XID, seq=4))

    def until_ends(self, count: int) -> int:
        """Read until `count` requests have ended; return how many ended well."""
        good = 0
        while count:
            view = self.next()
            if view.type in TERMINAL_TYPES:
                count -= 1
                good += view.type is FrameType.END
        return good

    def drain(self, rid: bytes, frames: int) -> float:
        """Read at least so many frames and to the END, granting by half windows; return the seconds from the first."""
        while self.next().type is not FrameType.STREAM_START:
            pass
        start, owed = perf_counter(), 0
        while True:
            count, last, self._position = count_frames(self._buffer, self._position, 1 << 30)
            frames, owed = frames - count, owed + count
            if count and self._is_end(_body_at(self._buffer, last)):
                return perf_counter() - start
            if owed * 2 >= self.window and frames > 2:
                self.send(packed(credit_frame(rid, STREAM, owed, RESPONSE, xid=XID)))
                owed = 0
            self._fill()

    def _is_end(self, body: bytes) -> bool:
        view = inspect(body)
        if view.type is FrameType.ERR:
            raise failure_of(view.meta).error()
        return view.type is FrameType.END

    def feed(self, chunks: list[bytes]) -> None:
        """Send a body's CHUNKs under credit."""
        credit, sent = self.window - 1, 0
        while sent < len(chunks):
            block = chunks[sent : sent + credit]
            self.send(b"".join(block))
            sent, credit = sent + len(block), credit - len(block)
            while credit == 0:
                view = self.next()
                credit += view.fields[19] if view.type is FrameType.CREDIT else 0


def _body_at(buffer: bytes, begin: int) -> bytes:
    return buffer[begin + 4 : begin + 4 + int.from_bytes(buffer[begin : begin + 4], "big")]


def _req(rid: bytes, child: int = 0) -> bytes:
    return packed(
        Frame(FrameType.REQ, rid, cap=cap_of(child), content_type="application/cbor", payload=b"", routing_id=XID)
    )


# Routes


def _greet(caller: Caller, children: int) -> None:
    """Do the host's part of the handshake, for a route without a host."""
    caller.send(packed(hello_frame(DEFAULT_LIMITS)))
    for _ in range(children):
        while caller.next().type is not FrameType.HELLO:
            pass
    caller.send(packed(policy_frame(NetworkPolicy.NO_TELEMETRY)))


@contextmanager
def direct(shape: Shape) -> Iterator[Caller]:
    """A caller at the pipes of the cartridge."""
    command = [sys.executable, "-m", "benchmarks.lean", "0", *shape.words[1:]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        caller = Caller(process.stdout.fileno(), process.stdin.fileno(), process, shape.window)
        _greet(caller, 1)
        yield caller
    process.wait()


@contextmanager
def _behind(command: list[str], shape: Shape, *, greets: bool) -> Iterator[Caller]:
    """A caller at one end of a socket whose other end a process has as its first argument."""
    near, far = socket.socketpair()
    with near:
        with far:
            words = [str(far.fileno()) if word == "FD" else word for word in command]
            process = subprocess.Popen(words, pass_fds=[far.fileno()], cwd=ROOT)
        caller = Caller(near.fileno(), near.fileno(), process, shape.window)
        if greets:
            _greet(caller, shape.children)
        else:
            caller.send(packed(policy_frame(NetworkPolicy.NO_TELEMETRY)))
            caller.send(b"".join(caller.ask("echo", child) for child in range(shape.children)))
            caller.until_ends(shape.children)
        yield caller
        near.shutdown(socket.SHUT_WR)
        process.wait()


def host(shape: Shape) -> Route:
    """Our host."""
    return _behind([sys.executable, "-m", "benchmarks.routed", "FD", *shape.words], shape, greets=False)


def poll_loop(shape: Shape) -> Route:
    """A bare poll loop in Python."""
    return _behind([sys.executable, "-m", "benchmarks.poll", "FD", *shape.words], shape, greets=True)


def forwarder(program: Path) -> Callable[[Shape], Route]:
    """A byte forwarder in C."""

    def route(shape: Shape) -> Route:
        command = [str(program), "FD", sys.executable, "-m", "benchmarks.lean", "0", *shape.words[1:]]
        return _behind(command, shape, greets=True)

    return route


def public(kind: str) -> Callable[[Shape], Route]:
    """The public package's host, as shipped or repaired, with our cartridge."""

    def route(shape: Shape) -> Route:
        command = [str(PEER_PYTHON), "-PE", str(ROOT / "benchmarks" / "router_peer.py"), kind, "FD", sys.executable]
        return _behind([*command, *shape.words], shape, greets=False)

    return route


# Figures


def _cpu(caller: Caller) -> float:
    """Return the CPU seconds of the routing process."""
    tasks = Path(f"/proc/{caller.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _up(caller: Caller, count: int, size: int) -> tuple[float, float]:
    """Cartridge to caller: frames a second, and microseconds of the router's CPU a frame."""
    before = _cpu(caller)
    request = caller.ask(f"blast {count} {size}")
    caller.send(request)
    seconds = caller.drain(caller.last_id, count + 2)
    return count / seconds, (_cpu(caller) - before) / count * 1e6


def _down(caller: Caller, count: int, size: int) -> tuple[float, float]:
    """Caller to cartridge: the same."""
    rid = caller.new_id()
    payloads = [encode_value(b"sink %d" % count), *[encode_value(bytes(size))] * count]
    start, script, *chunks, end = stream(rid, XID, iter(payloads), 1)
    before, began = _cpu(caller), perf_counter()
    caller.send(_req(rid) + start + script)
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


def _paired(
    title: str, unit: str, callers: Mapping[str, Caller], run: Callable[[Caller], tuple[float, float]], base: str
) -> None:
    """Measure what every route takes in turn, and print both figures of `run`."""
    cpu: dict[str, list[float]] = {name: [] for name in callers}

    def one(name: str) -> float:
        figure, micros = run(callers[name])
        cpu[name].append(micros)
        return figure

    figures = measure({name: partial(one, name) for name in callers})
    report(title, unit, figures, base)
    for name, values in cpu.items():
        if name != "direct":
            print(f"  {name:<34} {median(values[-ROUNDS:]):>10.2f} us of CPU each")


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
    """Print R1 to R5."""
    with tempfile.TemporaryDirectory() as folder:
        routes: dict[str, Callable[[Shape], Route]] = {
            "host": host, "direct": direct, "C forwarder": forwarder(_compile(folder)), "poll loop": poll_loop
        }  # fmt: skip
        if PEER_PYTHON.exists():
            routes |= {REPAIRED: public("repaired"), SHIPPED: public("shipped")}
        else:
            print("the public host is left out: the README's test command makes its environment")
        _tables(routes)
    _many()


def _tables(routes: Mapping[str, Callable[[Shape], Route]]) -> None:
    quick = {name: route for name, route in routes.items() if name != SHIPPED}
    rival = REPAIRED if REPAIRED in routes else "C forwarder"
    with _routes(Shape(), quick) as callers:
        name = "R1: 30-byte CHUNKs in blocks, cartridge to caller"
        _paired(name, "frames/s", callers, lambda caller: _up(caller, 20_000, 30), rival)
        name = "R1: 30-byte CHUNKs in blocks, caller to cartridge"
        _paired(name, "frames/s", callers, lambda caller: _down(caller, 20_000, 30), rival)
    with _routes(Shape(1, 32, 262_144), quick) as callers:
        name = "R2: 256 KiB CHUNKs, cartridge to caller"
        _paired(name, "frames/s", callers, lambda caller: _up(caller, 256, 262_000), "C forwarder")
    with _routes(Shape(), routes) as callers:
        figures = measure(
            {name: partial(_echo, caller, 20 if name == SHIPPED else 300) for name, caller in callers.items()}
        )
        report("R3: echo of 120 bytes, one at a time", "us", figures, "direct")
    with _routes(Shape(), quick) as callers:
        _paired("R4: one token a write, one way", "us", callers, lambda caller: _tokens(caller, 1), "direct")
    many = {name: quick[name] for name in ("host", "poll loop")}
    with _routes(Shape(8), many) as callers:
        _paired("R4: the same from 8 cartridges", "us", callers, lambda caller: _tokens(caller, 8), "poll loop")


def _many() -> None:
    """Print R5: the host's memory while and after many requests are in flight."""
    with host(Shape(1, 32)) as caller:
        first = _rss(caller)
        print(f"\nR5: requests in flight through the host  (RSS at first {first:.1f} MiB)")
        done = 0
        for count, rounds in ((1_000, 1), (1_000, 9), (1_000, 90), (10_000, 1)):
            seconds, good = 0.0, 0
            for _ in range(rounds):
                ended, took = _in_flight(caller, count)
                good, seconds = good + ended, seconds + took
            done += count * rounds
            print(
                f"  {rounds:>3} times {count:>6} at once: {good} of {count * rounds} answered in {seconds:.2f} s; "
                f"RSS {_rss(caller) - first:+.1f} MiB after {done} requests"
            )
