"""The way out under pressure: a pipe that is full must stop workers, and never the main thread."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from capdag.cartridge._writer import MAX_POSTED, Flow, FrameWriter
from capdag.errors import LinkClosedError, LocalProtocolError
from capdag.wire import (
    USER_CANCEL,
    Frame,
    FrameSplitter,
    FrameType,
    FrameView,
    MessageId,
    body_end_frame,
    cancel_frame,
    inspect,
    pack,
    view_of,
)
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import STUB_COMMAND, cartridge, req


class Pipe:
    """A writer on a pipe that nobody reads until asked to."""

    def __init__(self, blocking: bool) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, blocking)
        self.broken = threading.Event()
        self.writer = FrameWriter(self.write_fd, 3_000_000, self.broken.set)
        self.splitter = FrameSplitter()
        self.frames: list[FrameView] = []

    def read(self, until: int) -> None:
        """Read until so many frames have come."""
        while len(self.frames) < until:
            assert select.select([self.read_fd], [], [], 5)[0], f"{len(self.frames)} frames came, {until} should"
            self.frames += map(inspect, self.splitter.feed(os.read(self.read_fd, 65_536)))


@pytest.fixture(params=[True, False], ids=["blocking", "non-blocking"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    pipe = Pipe(request.param)
    yield pipe
    for fd in (pipe.read_fd, pipe.write_fd):
        try:
            os.close(fd)
        except OSError:
            continue


@contextmanager
def worker(target: object) -> Iterator[threading.Thread]:
    """Run something in a thread and see it end."""
    thread = threading.Thread(target=target, daemon=True)  # type: ignore[arg-type]
    thread.start()
    yield thread
    thread.join(5)
    assert not thread.is_alive()


def log(rid: MessageId, size: int) -> Frame:
    return Frame(FrameType.LOG, rid, meta={"level": "info", "attribution_class": "internal", "message": "m" * size})


def heartbeat(rid: int) -> Frame:
    return Frame(FrameType.HEARTBEAT, rid)


def packed(frame: Frame) -> bytes:
    return pack(view_of(frame), 3_000_000)


def test_the_main_thread_does_not_wait_for_a_worker_that_does(pipe: Pipe) -> None:
    flow = Flow(1, None)
    with worker(lambda: pipe.writer.send_frame(flow, log(1, 500_000))):
        time.sleep(0.1)  # the worker holds the lock and waits for the pipe
        for rid in range(20, 30):
            pipe.writer.post(heartbeat(rid))
            pipe.writer.flush()
        assert not pipe.writer.wants_room, "the worker sends them: there is nothing to poll for"
        pipe.read(11)
    assert [view.id for view in pipe.frames] == [1, *range(20, 30)]
    assert pipe.writer.idle


def test_a_worker_sends_what_the_main_thread_could_not(pipe: Pipe) -> None:
    count = 400
    for rid in range(count):
        pipe.writer.post(log(rid, 1000))
        pipe.writer.flush()
    assert pipe.writer.wants_room
    assert not pipe.writer.overfull
    with worker(lambda: pipe.writer.send_frame(Flow(9_999, None), log(9_999, 10))):
        pipe.read(count + 1)
    assert [view.id for view in pipe.frames] == [*range(count), 9_999]


def test_the_main_thread_goes_on_when_there_is_room(pipe: Pipe) -> None:
    for rid in range(300):
        pipe.writer.post(log(rid, 1000))
    while not pipe.writer.idle:
        pipe.writer.flush()
        if pipe.writer.wants_room:
            pipe.read(len(pipe.frames) + 1)
    pipe.read(300)
    assert [view.id for view in pipe.frames] == list(range(300))


def test_what_waits_is_bounded(pipe: Pipe) -> None:
    while not pipe.writer.overfull:
        pipe.writer.post(log(1, 50_000))
        pipe.writer.flush()
    # The caller stops reading now. The bound is passed by one frame at most.
    waiting = pipe.writer._bytes_posted - pipe.writer._bytes_taken
    assert MAX_POSTED < waiting < MAX_POSTED + 51_000


def test_many_threads_never_tear_a_frame_or_break_an_order(pipe: Pipe) -> None:
    flows = [Flow(rid, None) for rid in range(6)]

    def work(flow: Flow) -> None:
        for size in range(0, 60_000, 1000):
            pipe.writer.send_frame(flow, log(flow.rid, size))

    threads = [threading.Thread(target=work, args=(flow,), daemon=True) for flow in flows]
    for thread in threads:
        thread.start()
    for rid in range(100, 160):
        pipe.writer.post(heartbeat(rid))
        pipe.writer.flush()
        pipe.read(len(pipe.frames) + 1)
    pipe.writer.flush()
    pipe.read(6 * 60 + 60)
    for thread in threads:
        thread.join(5)
    for flow in flows:
        assert [view.seq for view in pipe.frames if view.id == flow.rid] == list(range(60))
    assert [view.id for view in pipe.frames if view.type is FrameType.HEARTBEAT] == list(range(100, 160))


def test_nothing_follows_the_terminal(pipe: Pipe) -> None:
    flow = Flow(1, None)
    assert pipe.writer.send_frame(flow, log(1, 1))
    assert pipe.writer.send_frame(flow, body_end_frame(1), terminal=True)
    assert not pipe.writer.send_frame(flow, log(1, 1))
    assert not pipe.writer.send_frame(flow, body_end_frame(1), terminal=True)
    assert pipe.writer.stragglers == 2
    pipe.read(2)
    assert [view.seq for view in pipe.frames] == [0, 1]


def test_a_frame_that_cannot_be_built_uses_up_no_number(pipe: Pipe) -> None:
    flow = Flow(1, None)
    with pytest.raises(LocalProtocolError, match="max_frame"):
        pipe.writer.send_frame(flow, log(1, 4_000_000))
    with pytest.raises(LocalProtocolError):
        pipe.writer.send_frame(flow, Frame(FrameType.LOG, 1, meta={"message": object()}))
    pipe.writer.send_frame(flow, log(1, 1))
    pipe.read(1)
    assert pipe.frames[0].seq == 0


def test_a_closed_pipe_fails_workers_and_wakes_the_main_thread(pipe: Pipe) -> None:
    failed = threading.Event()

    def work() -> None:
        with pytest.raises(LinkClosedError):
            pipe.writer.send_frame(Flow(1, None), log(1, 500_000))
        failed.set()

    with worker(work):
        time.sleep(0.05)
        pipe.writer.post(heartbeat(5))
        os.close(pipe.read_fd)
        assert failed.wait(5)
    assert pipe.broken.is_set()
    pipe.writer.post(heartbeat(6))
    pipe.writer.flush()
    assert pipe.writer.idle
    assert not pipe.writer.wants_room
    with pytest.raises(LinkClosedError):
        pipe.writer.send_frame(Flow(2, None), log(2, 1))


def test_a_host_that_does_not_read_is_still_listened_to() -> None:
    """The real process, with a full pipe: workers wait, and the main thread still takes frames and the end."""
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "holding")
        # Floods without reading: each may send 32 items of 1,000 bytes, which is more than the pipe holds.
        os.set_blocking(driver.stdin, True)
        for rid in (2, 3):
            driver.process.stdin.write(packed(req(rid, stub.FLOOD)))
        for rid in range(100, 140):
            driver.process.stdin.write(packed(heartbeat(rid)))
        driver.process.stdin.write(packed(cancel_frame(2, USER_CANCEL)))
        time.sleep(0.3)
        # Only now the host reads. Everything is there, in order and whole.
        for rid in range(100, 140):
            reply = driver.next(lambda view: view.type is FrameType.HEARTBEAT)
            assert reply.id == rid
        assert driver.terminal(2).meta["code"] == "CANCELLED"
        for rid in (1, 3):
            driver.send(cancel_frame(rid, USER_CANCEL))
            assert driver.terminal(rid).meta["code"] == "CANCELLED"
