"""A host for one cartridge, as small as can be: it starts the real process and speaks frames with `capdag.wire`.

Every wait has a deadline, so that a cartridge that hangs fails a test and not the suite.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from capdag.wire import (
    DEFAULT_LIMITS,
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    CartridgeHello,
    Frame,
    FrameSplitter,
    FrameType,
    FrameView,
    IdentityCheck,
    InStreams,
    Limits,
    LogRecord,
    MessageId,
    NetworkPolicy,
    SendWindow,
    body_end_frame,
    credit_frame,
    fnv1a_64,
    hello_frame,
    identity_request,
    inspect,
    item_payloads,
    pack,
    policy_frame,
    read_cartridge_hello,
    read_log,
    scalar_payloads,
    view_of,
)

PATIENCE = 10.0
"""Seconds a driver waits for what must come."""

ROOT = Path(__file__).parents[2]

STUB_COMMAND = (sys.executable, "-m", "capdag.cartridge", "tests.cartridge.stub")
TASKS_COMMAND = (sys.executable, "-m", "capdag.cartridge", "tests.cartridge.tasks_stub")
ECHO_COMMAND = (sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main")

Test = Callable[[FrameView], bool]


class Answer(NamedTuple):
    """What came back: values by media URN of their stream, LOGs, and all frames, the terminal last."""

    values: dict[str, list[Any]]
    logs: list[LogRecord]
    frames: list[FrameView]


class Driver:
    """One running cartridge. `frames` holds everything that came, in order; `position` is what has been looked at."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], limits: Limits) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(list(command), cwd=ROOT, env={**os.environ, **env}, bufsize=0, **pipes)  # type: ignore[call-overload]
        self.stdin: int = self.process.stdin.fileno()
        self.stdout: int = self.process.stdout.fileno()
        self.limits = limits
        self.frames: list[FrameView] = []
        self.position = 0
        self.ended = False
        self._splitter = FrameSplitter()

    def send(self, *frames: Frame) -> None:
        """Write frames whole."""
        self.send_bytes(b"".join(pack(view_of(frame), self.limits.max_frame) for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """Write bytes as they are; reads meanwhile, so that neither side waits for the other for ever."""
        os.set_blocking(self.stdin, False)
        rest = memoryview(data)
        while rest:
            readable, writable, _ = select.select([] if self.ended else [self.stdout], [self.stdin], [], PATIENCE)
            assert readable or writable, "the cartridge neither reads nor writes"
            if readable:
                self._read()
            if writable:
                rest = rest[os.write(self.stdin, rest) :]

    def _read(self) -> None:
        data = os.read(self.stdout, 65_536)
        if not data:
            self._splitter.eof()
            self.ended = True
        self.frames += [inspect(body) for body in self._splitter.feed(data)]

    def next(self, wanted: Test = lambda _: True, patience: float = PATIENCE) -> FrameView:
        """Return the next frame for which `wanted` holds, passing over others."""
        deadline = time.monotonic() + patience
        while True:
            while self.position < len(self.frames):
                self.position += 1
                if wanted(self.frames[self.position - 1]):
                    return self.frames[self.position - 1]
            left = deadline - time.monotonic()
            assert left > 0, f"no such frame within {patience} s; came: {self.frames[-5:]}"
            assert not self.ended, f"stdout has ended; came: {self.frames[-5:]}"
            if select.select([self.stdout], [], [], left)[0]:
                self._read()

    def find(self, wanted: Test, patience: float = PATIENCE) -> FrameView:
        """Return the first frame of all for which `wanted` holds, whether it has come already or not: for frames of
        one request while others are under way."""
        for number, view in enumerate(self.frames):
            if wanted(view):
                self.position = max(self.position, number + 1)
                return view
        self.position = len(self.frames)
        return self.next(wanted, patience)

    def silent(self, seconds: float) -> bool:
        """True if nothing comes within so many seconds."""
        return self.position == len(self.frames) and not select.select([self.stdout], [], [], seconds)[0]

    def hello(self) -> CartridgeHello:
        """Exchange HELLO; returns the cartridge's."""
        self.send(hello_frame(self.limits))
        answer = read_cartridge_hello(self.next())
        self.limits = answer.limits
        return answer

    def attach(self) -> CartridgeHello:
        """Do what a host does before the first request: HELLO, identity, POLICY."""
        hello = self.hello()
        check = IdentityCheck(b"n" * 32)
        self.send(*identity_request(7, b"n" * 32))
        while not check.feed(self.next()):
            pass
        self.send(policy_frame(NetworkPolicy.NO_TELEMETRY))
        return hello

    def terminal(self, rid: MessageId, patience: float = PATIENCE) -> FrameView:
        """Wait for the terminal of a request."""
        return self.find(lambda view: view.id == rid and view.type in TERMINAL_TYPES, patience)

    def of(self, rid: MessageId, kind: FrameType | None = None) -> list[FrameView]:
        """Return everything that came for a request, or what is of one type."""
        return [view for view in self.frames if view.id == rid and kind in (None, view.type)]

    def ask(self, rid: MessageId, cap: str, media_urn: str = "media:octets", value: Any = b"x") -> FrameView:
        """Make a whole small request and return its terminal."""
        self.send(*whole_request(rid, cap, media_urn, value))
        return self.terminal(rid)

    def exchange(
        self, rid: MessageId, cap: str, media_urn: str, payloads: Sequence[bytes], *, sequence: bool = False
    ) -> Answer:
        """Make a request of any size under credit both ways: send a CHUNK only when one is granted, grant what has
        been read. Every rule of the receiving side is checked by `capdag.wire`."""
        window = SendWindow(self.limits.initial_credit)
        streams = InStreams(self.limits.initial_credit)
        answer = Answer({}, [], [])
        waiting = deque(enumerate(payloads))
        self.send(req(rid, cap), start(rid, media_urn, sequence=sequence))
        ended = False
        while True:
            while waiting and window.take():
                self.send(chunk(rid, *waiting.popleft()))
            if not waiting and not ended:
                ended = True
                self.send(end(rid, len(payloads)), body_end_frame(rid))
            view = self.next(lambda view: view.id == rid)
            answer.frames.append(view)
            if view.type is FrameType.CREDIT:
                assert view.meta == {"credit_dir": REQUEST}
                assert window.remaining + view.fields[19] <= window.initial, "more granted than was sent"
                window.grant(view.fields[19])
            elif view.type is FrameType.STREAM_START:
                stream = streams.start(view)
                answer.values[stream.head.media_urn] = []
            elif view.type is FrameType.CHUNK:
                stream = streams.of(view)
                received = stream.chunk(view)
                answer.values[stream.head.media_urn] += received.values
                granted = received.grant_now + stream.window.consume(received.owed)
                granted += stream.window.flush() if self.silent(0) else 0
                if granted:
                    self.send(credit_frame(rid, view.stream_id or "", granted, RESPONSE))
            elif view.type is FrameType.STREAM_END:
                streams.of(view).end(view)
            elif view.type is FrameType.LOG:
                answer.logs.append(read_log(view.meta))
            elif view.type in TERMINAL_TYPES:
                return answer

    def heartbeat(self, rid: MessageId, desired: bytes | None = None) -> FrameView:
        """Send a probe and return what comes with its id."""
        meta = None if desired is None else {"desired_capacities": desired}
        self.send(Frame(FrameType.HEARTBEAT, rid, meta=meta))
        return self.find(lambda view: view.id == rid)

    def logged(self, rid: MessageId, text: str) -> FrameView:
        """Wait for a LOG of a request whose message begins so."""
        return self.find(
            lambda view: view.id == rid and view.type is FrameType.LOG and view.meta["message"].startswith(text)
        )

    def close(self) -> int:
        """Close stdin and return the exit code."""
        self.process.stdin.close()
        return self.exit_code()

    def exit_code(self, patience: float = PATIENCE) -> int:
        """Wait for the process to end."""
        return int(self.process.wait(patience))

    def stderr(self) -> str:
        """Return what the process wrote to stderr; it must have ended."""
        return bytes(self.process.stderr.read()).decode()


@contextmanager
def cartridge(
    command: Sequence[str] = ECHO_COMMAND, *, env: Mapping[str, str] | None = None, limits: Limits = DEFAULT_LIMITS
) -> Iterator[Driver]:
    """Start a cartridge; it is gone when the block ends."""
    driver = Driver(command, env or {}, limits)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()
        for pipe in (driver.process.stdin, driver.process.stdout, driver.process.stderr):
            pipe.close()


def req(rid: MessageId, cap: str, *, xid: MessageId | None = None) -> Frame:
    """Build a REQ."""
    return Frame(FrameType.REQ, rid, cap=cap, content_type="application/cbor", payload=b"", routing_id=xid)


def start(rid: MessageId, media_urn: str, *, stream: str = "arg-0", sequence: bool = False) -> Frame:
    """Build the STREAM_START of an argument."""
    return Frame(FrameType.STREAM_START, rid, stream_id=stream, media_urn=media_urn, is_sequence=sequence)


def chunk(rid: MessageId, index: int, payload: bytes, *, stream: str = "arg-0") -> Frame:
    """Build a CHUNK with a right checksum."""
    checksum = fnv1a_64(payload)
    return Frame(FrameType.CHUNK, rid, stream_id=stream, payload=payload, chunk_index=index, checksum=checksum)


def end(rid: MessageId, count: int, *, stream: str = "arg-0") -> Frame:
    """Build the STREAM_END of an argument."""
    return Frame(FrameType.STREAM_END, rid, stream_id=stream, chunk_count=count)


def whole_request(rid: MessageId, cap: str, media_urn: str, value: Any, *, xid: MessageId | None = None) -> list[Frame]:
    """Build a request with one scalar argument that fits the first window."""
    payloads = list(scalar_payloads(value, DEFAULT_LIMITS.max_chunk))
    chunks = [chunk(rid, index, payload) for index, payload in enumerate(payloads)]
    frames = [req(rid, cap), start(rid, media_urn), *chunks, end(rid, len(chunks)), body_end_frame(rid)]
    for frame in frames:
        frame.routing_id = xid
    return frames


def sequence_payloads(items: Sequence[Any], max_chunk: int) -> list[bytes]:
    """Return the CHUNK payloads of a sequence."""
    return [payload for item in items for payload in item_payloads(item, max_chunk)]
