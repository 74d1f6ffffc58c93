"""Links: whole frames or the end of the link, one writer a descriptor, no turn inside a turn."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from capdag.errors import LocalProtocolError
from capdag.transport import (
    Dispatcher,
    FdLink,
    LinkEnd,
    SocketError,
    UnixListener,
    connect_unix,
    local_link_pair,
    socket_link,
)
from capdag.transport.background import background, ungrouped
from capdag.transport.outbox import Outbox
from capdag.wire import DEFAULT_LIMITS, Frame, FrameSplitter, FrameType, FrameView, fnv1a_64, pack, view_of

PATIENCE = 5.0


def chunk(index: int, size: int = 12) -> FrameView:
    payload = index.to_bytes(4, "big") * (size // 4)
    return view_of(
        Frame(FrameType.CHUNK, 7, index, stream_id="s", payload=payload, chunk_index=index, checksum=fnv1a_64(payload))
    )


def wire_bytes(*views: FrameView) -> bytes:
    return b"".join(pack(view, DEFAULT_LIMITS.max_frame) for view in views)


class Inbox:
    """A receiver that keeps what comes."""

    def __init__(self) -> None:
        self.views: list[FrameView] = []
        self.batches = 0
        self.reasons: list[str] = []
        self._news = trio.Event()

    def deliver(self, batch: Sequence[FrameView]) -> None:
        self.views.extend(batch)
        self.batches += 1
        self._news.set()

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self._news.set()

    @property
    def bodies(self) -> list[bytes]:
        return [view.body for view in self.views]

    async def until(self, ready: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE):
            while not ready():
                self._news = trio.Event()
                await self._news.wait()


class End:
    """A running link over a socket; the far end is in the test's hands."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.link = socket_link(near, "near")
        self.inbox = Inbox()
        self.scope = trio.CancelScope()
        self.ended: LinkEnd | None = None

    async def run(self) -> None:
        with self.scope:
            self.ended = await self.link.run(self.inbox)

    async def wait_closed(self) -> str:
        await self.inbox.until(lambda: bool(self.inbox.reasons))
        await wait_all_tasks_blocked()
        assert len(self.inbox.reasons) == 1
        return self.inbox.reasons[0]

    async def read(self, size: int) -> bytes:
        """Read `size` bytes at the far end."""
        self.far.setblocking(False)
        got = b""
        with trio.fail_after(PATIENCE):
            while len(got) < size:
                await trio.lowlevel.wait_readable(self.far)
                data = self.far.recv(size - len(got))
                assert data, f"the link ended after {len(got)} of {size} bytes"
                got += data
        return got


@asynccontextmanager
async def running() -> AsyncIterator[End]:
    end = End()
    with end.far:
        async with background(end.run):
            await wait_all_tasks_blocked()
            yield end


# What comes


async def test_frames_come_whole_however_they_are_cut() -> None:
    views = [chunk(index, size) for index, size in enumerate((0, 4, 400, 4000))]
    async with running() as end:
        for byte in wire_bytes(*views):
            end.far.send(bytes((byte,)))
            if byte % 5 == 0:
                await trio.lowlevel.checkpoint()
        await end.inbox.until(lambda: len(end.inbox.views) == len(views))
    assert end.inbox.bodies == [view.body for view in views]


async def test_what_one_read_brings_is_one_batch() -> None:
    async with running() as end:
        end.far.send(wire_bytes(*(chunk(index) for index in range(50))))
        await end.inbox.until(lambda: len(end.inbox.views) == 50)
    assert end.inbox.batches == 1


async def test_a_clean_end() -> None:
    async with running() as end:
        end.far.send(wire_bytes(chunk(0)))
        end.far.close()
        assert await end.wait_closed() == "the other side closed the link"
    assert end.inbox.bodies == [chunk(0).body]
    assert end.ended is LinkEnd.EOF


async def test_an_end_inside_a_frame_is_told_from_a_clean_one() -> None:
    good, torn = wire_bytes(chunk(0)), wire_bytes(chunk(1, 400))
    async with running() as end:
        end.far.send(good + torn[:-1])
        end.far.close()
        reason = await end.wait_closed()
    assert end.inbox.bodies == [chunk(0).body]
    assert end.ended is LinkEnd.BROKEN
    assert "ended inside a frame" in reason
    assert f"{len(torn) - 1} of {len(torn)} bytes" in reason


@pytest.mark.parametrize(
    ("garbage", "named"),
    [
        (b"Loading model...\n", "at stream offset"),
        (b"\0\0\0\0", "frame length 0"),
        (b"\xff\xff\xff\xff", "frame length 4294967295"),
        ((DEFAULT_LIMITS.max_frame + 1).to_bytes(4, "big"), "frame length 3670017"),
        (b"\0\0\0\x01\xa8", "CBOR"),
    ],
)
async def test_garbage_ends_the_link_after_the_good_frames(garbage: bytes, named: str) -> None:
    async with running() as end:
        end.far.send(wire_bytes(chunk(0), chunk(1)) + garbage + wire_bytes(chunk(2)))
        reason = await end.wait_closed()
    assert end.inbox.bodies == [chunk(0).body, chunk(1).body]
    assert end.ended is LinkEnd.VIOLATION
    assert end.link.violation is not None
    assert named in reason


async def test_the_negotiated_limit_holds_for_what_comes() -> None:
    async with running() as end:
        end.link.set_limits(DEFAULT_LIMITS._replace(max_frame=100))
        end.far.send(wire_bytes(chunk(0), chunk(1, 400)))
        reason = await end.wait_closed()
    assert end.inbox.bodies == [chunk(0).body]
    assert "not within 1..100" in reason


async def test_drain_takes_what_lies_there_and_does_not_wait() -> None:
    async with running() as end:
        count = 3000
        end.far.send(wire_bytes(*(chunk(index) for index in range(count))))
        end.link.drain()
        assert len(end.inbox.views) == count
        end.link.drain()
        assert end.ended is None


async def test_a_far_end_that_stops_reading_has_its_last_frames_taken() -> None:
    """The process at the other end dies with an END in the pipe: our write fails before we have read it."""
    async with running() as end:
        end.far.send(wire_bytes(chunk(0)))
        end.far.close()
        end.link.send([chunk(9)])
        await end.wait_closed()
    assert end.inbox.bodies == [chunk(0).body]
    assert end.ended in (LinkEnd.BROKEN, LinkEnd.EOF)


# What goes


async def test_a_frame_goes_out_at_once_while_the_writer_is_parked() -> None:
    async with running() as end:
        end.link.send([chunk(0), chunk(1)])
        end.far.setblocking(False)
        sent = wire_bytes(chunk(0), chunk(1))
        assert end.far.recv(10_000) == sent, "no scheduling step may lie between send and the descriptor"
        await end.link.flushed()


async def test_frames_sent_before_the_link_runs_are_kept() -> None:
    end = End()
    end.link.send([chunk(0)])
    with end.far:
        async with background(end.run):
            assert await end.read(len(wire_bytes(chunk(0)))) == wire_bytes(chunk(0))


async def test_a_full_descriptor_loses_nothing_and_keeps_the_order() -> None:
    views = [chunk(index, 40_000) for index in range(100)]
    async with running() as end:
        for view in views:
            end.link.send([view])
        assert end.link.bytes_queued > 1_000_000
        expected = wire_bytes(*views)
        assert await end.read(len(expected)) == expected
        with trio.fail_after(PATIENCE):
            await end.link.flushed()
        assert end.link.bytes_queued == 0


async def test_more_small_frames_than_one_write_takes() -> None:
    views = [chunk(index) for index in range(5000)]
    async with running() as end:
        end.link.send([chunk(0, 1_000_000)])
        for view in views:
            end.link.send([view])
        expected = wire_bytes(chunk(0, 1_000_000), *views)
        assert await end.read(len(expected)) == expected


async def test_a_frame_over_the_limit_is_refused_and_those_before_it_go() -> None:
    async with running() as end:
        end.link.set_limits(DEFAULT_LIMITS._replace(max_frame=200))
        with pytest.raises(LocalProtocolError, match="over the link's max_frame of 200"):
            end.link.send([chunk(0), chunk(1, 400), chunk(2)])
        expected = wire_bytes(chunk(0))
        assert await end.read(len(expected)) == expected


async def test_a_cancelled_writer_closes_its_descriptor_so_that_a_torn_frame_is_seen_as_torn() -> None:
    async with running() as end:
        end.link.send([chunk(0, 3_000_000)])
        assert end.link.bytes_queued > 0
        end.scope.cancel()
        await end.wait_closed()
        splitter, got = FrameSplitter(), b""
        end.far.setblocking(True)
        while data := end.far.recv(1 << 20):
            got += data
        assert list(splitter.feed(got)) == []
        with pytest.raises(Exception, match="ended inside a frame"):
            splitter.eof()
        end.link.send([chunk(1)])
        assert end.link.bytes_queued == 0


async def test_closing_ends_the_link_from_this_side() -> None:
    async with running() as end:
        end.link.close()
        assert await end.wait_closed() == "this side closed the link"
        assert end.ended is LinkEnd.CLOSED
        assert end.far.recv(1) == b""


async def test_a_socket_is_closed_once() -> None:
    """Its number may belong to another task right after; telling trio of it again would break that one's wait."""
    near, far = socket.socketpair()
    near.setblocking(False)
    closes: list[int] = []

    def close() -> None:
        closes.append(near.fileno())
        near.close()

    link = FdLink("near", near.fileno(), near.fileno(), close_read=close, close_write=close)
    number = near.fileno()
    with far:
        async with background() as nursery:
            nursery.start_soon(link.run, Inbox())
            await wait_all_tasks_blocked()
            link.close()
            await wait_all_tasks_blocked()
    assert closes == [number]


async def test_pipes_are_closed_each_by_its_own() -> None:
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
    for fd in (ours_in, ours_out):
        os.set_blocking(fd, False)
    link = FdLink(
        "pipes", ours_in, ours_out, close_read=lambda: os.close(ours_in), close_write=lambda: os.close(ours_out)
    )
    inbox = Inbox()
    async with background() as nursery:
        nursery.start_soon(link.run, inbox)
        await wait_all_tasks_blocked()
        link.send([chunk(0)])
        assert os.read(theirs_in, 1000) == wire_bytes(chunk(0))
        os.write(theirs_out, wire_bytes(chunk(1)))
        os.close(theirs_out)
        await inbox.until(lambda: bool(inbox.reasons))
    assert inbox.bodies == [chunk(1).body]
    assert os.read(theirs_in, 1) == b""
    os.close(theirs_in)


async def test_an_outbox_tells_why_it_ended() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    outbox = Outbox(writing)
    os.close(reading)
    outbox.append(b"x")
    with trio.fail_after(PATIENCE):
        await outbox.run()
        await outbox.flushed()
    assert isinstance(outbox.error, BrokenPipeError)
    os.close(writing)


async def test_an_outbox_that_breaks_while_parked_ends() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    outbox = Outbox(writing)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            await wait_all_tasks_blocked()
            os.close(reading)
            outbox.append(b"x")
    assert outbox.broken
    os.close(writing)


# In one process


def test_a_local_link_keeps_what_comes_before_its_receiver() -> None:
    left, right = local_link_pair("local")
    inbox = Inbox()
    left.send([chunk(0)])
    left.send([chunk(1)])
    left.close()
    left.send([chunk(2)])
    right.connect(inbox)
    assert inbox.bodies == [chunk(0).body, chunk(1).body]
    assert inbox.reasons == ["the other side closed the link"]


def test_a_local_link_closes_once() -> None:
    left, right = local_link_pair("local")
    near, far = Inbox(), Inbox()
    left.connect(near)
    right.connect(far)
    left.close()
    right.close()
    left.close()
    right.send([chunk(0)])
    assert (near.reasons, near.views) == ([], [])
    assert far.reasons == ["the other side closed the link"]


def test_turns_do_not_nest() -> None:
    dispatcher, order = Dispatcher(), list[str]()

    def outer() -> None:
        order.append("outer begins")
        dispatcher.run(lambda: order.append("inner"))
        dispatcher.run(lambda: dispatcher.run(lambda: order.append("innermost")))
        dispatcher.run(lambda: order.append("second inner"))
        order.append("outer ends")

    dispatcher.run(outer)
    assert order == ["outer begins", "outer ends", "inner", "second inner", "innermost"]


def test_a_turn_that_fails_ends_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher, order = Dispatcher(), list[str]()

    def outer() -> None:
        dispatcher.run(lambda: order.append("after"))
        raise ValueError("no such luck")

    dispatcher.run(outer)
    dispatcher.run(lambda: order.append("later"))
    assert order == ["after", "later"]
    assert "no such luck" in caplog.text


def test_two_rooms_that_answer_each_other_do_not_nest() -> None:
    """Each receiver answers every batch at once, a thousand times: calls must not pile up on the stack."""
    left, right = local_link_pair("local")

    class Room:
        def __init__(self, link: object) -> None:
            self.dispatcher = Dispatcher()
            self.depth = self.deepest = self.turns = 0

        def deliver(self, batch: Sequence[FrameView]) -> None:
            self.dispatcher.run(self.turn)

        def turn(self) -> None:
            self.depth += 1
            self.deepest = max(self.depth, self.deepest)
            self.turns += 1
            if self.turns < 1000:
                (left if self is near else right).send([chunk(0)])
            self.depth -= 1

        def closed(self, reason: str) -> None: ...

    near, far = Room(left), Room(right)
    left.connect(near)
    right.connect(far)
    left.send([chunk(0)])
    assert near.turns + far.turns >= 1000
    assert max(near.deepest, far.deepest) == 1


# Unix sockets


async def test_a_listener_carries_links(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with UnixListener(path) as listener:
        assert path.stat().st_mode & 0o777 == 0o600
        theirs = socket_link(connect_unix(path), "theirs")
        ours = socket_link(await listener.accept(), "ours")
        inbox = Inbox()
        async with background() as nursery:
            nursery.start_soon(theirs.run, inbox)
            nursery.start_soon(ours.run, Inbox())
            ours.send([chunk(0)])
            await inbox.until(lambda: bool(inbox.views))
    assert inbox.bodies == [chunk(0).body]
    assert not path.exists()


async def test_a_listener_takes_over_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with UnixListener(path), pytest.raises(SocketError, match=r"relay\.sock"), UnixListener(path):
        pass
    with pytest.raises(SocketError, match="is the other side running"):
        connect_unix(path)


async def test_waiting_to_accept_ends_with_the_scope(tmp_path: Path) -> None:
    with UnixListener(tmp_path / "relay.sock") as listener:
        with trio.move_on_after(0.01) as scope:
            await listener.accept()
        assert scope.cancelled_caught


# Background tasks


async def test_what_a_block_raises_leaves_bare(autojump_clock: trio.abc.Clock) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with background(trio.sleep_forever):
            raise ValueError("mine")


async def test_what_a_task_raises_ends_the_block_and_leaves_bare(autojump_clock: trio.abc.Clock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("the task's")

    with pytest.raises(ValueError, match="the task's"):
        async with background(fail):
            await trio.sleep_forever()


async def test_two_failures_leave_as_a_group(autojump_clock: trio.abc.Clock) -> None:
    async def fail() -> None:
        raise ValueError("the task's")

    async def fail_twice() -> None:
        with ungrouped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(fail)

    with pytest.raises(ExceptionGroup) as caught:
        await fail_twice()
    assert len(caught.value.exceptions) == 2


async def test_cancelling_around_a_background_is_no_error(autojump_clock: trio.abc.Clock) -> None:
    with trio.move_on_after(1) as scope:
        async with background(trio.sleep_forever):
            await trio.sleep_forever()
    assert scope.cancelled_caught
