"""What frames of a benchmark pass through: our host, a byte forwarder, a poll loop, nothing, the public host."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

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
    encode_value,
    failure_of,
    hello_frame,
    inspect,
    policy_frame,
)

from .lean import STREAM, cap_of, count_frames, packed, stream

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
        return req(rid, child) + body + packed(body_end_frame(rid, xid=XID, seq=4))

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


def req(rid: bytes, child: int = 0) -> bytes:
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
