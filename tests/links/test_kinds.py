"""Every kind of link over real sockets carries frames whole and in order, and ends as links end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked
from trio_websocket import wrap_client_stream

from capdag.transport import ByteLink, LinkEnd, StreamLink
from capdag.transport.background import background
from capdag.transport.websocket import LARGEST_MESSAGE
from capdag.wire import Frame, FrameType, FrameView, fnv1a_64, view_of
from tests.links.kinds import KINDS, TOKEN, doorway, linked, way

PATIENCE = 10.0

every_kind = pytest.mark.parametrize("kind", ["unix", *KINDS])


def chunk(index: int, size: int = 12) -> FrameView:
    payload = index.to_bytes(4, "big") * (size // 4)
    return view_of(
        Frame(FrameType.CHUNK, 7, index, stream_id="s", payload=payload, chunk_index=index, checksum=fnv1a_64(payload))
    )


class End:
    """One end of a link, run by a test."""

    def __init__(self) -> None:
        self.link: ByteLink | None = None
        self.bodies: list[bytes] = []
        self.reasons: list[str] = []
        self.end: LinkEnd | None = None
        self._news = trio.Event()

    async def use(self, link: ByteLink) -> None:
        self.link = link
        self._news.set()
        self.end = await link.run(self)

    def deliver(self, batch: Sequence[FrameView]) -> None:
        self.bodies += [view.body for view in batch]
        self._news.set()

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self._news.set()

    async def until(self, ready: Callable[[], object]) -> None:
        with trio.fail_after(PATIENCE):
            while not ready():
                self._news = trio.Event()
                await self._news.wait()

    async def connected(self) -> ByteLink:
        await self.until(lambda: self.link)
        assert self.link is not None
        return self.link


@asynccontextmanager
async def both_ends(kind: str, folder: Path) -> AsyncIterator[tuple[End, End]]:
    listening, dialling = End(), End()
    async with linked(way(kind, folder), listening.use, dialling.use):
        await listening.connected()
        await dialling.connected()
        yield listening, dialling


async def test_a_far_end_that_stops_reading_has_its_last_frames_taken(autojump_clock: trio.abc.Clock) -> None:
    """K12: it dies with an answer under way, and our write fails before we have read that."""
    answer = chunk(0, 200_000)  # more than one read brings
    for _ in range(20):  # which task is first is left to chance
        near, far = memory_stream_pair()
        end = End()
        async with background() as nursery:
            nursery.start_soon(end.use, StreamLink("near", near, close=lambda: None))
            link = await end.connected()
            await wait_all_tasks_blocked()
            # All at once: reader and writer are woken together.
            far.send_stream._outgoing.put(len(answer.body).to_bytes(4, "big") + answer.body)
            far.send_stream.close()
            far.receive_stream.close()
            link.send([chunk(1)])
            await end.until(lambda end=end: end.reasons)  # type: ignore[misc]
        assert end.bodies == [answer.body]


def has(end: End, count: int) -> bool:
    return len(end.bodies) >= count


@every_kind
async def test_frames_of_all_sizes_come_in_order_both_ways(kind: str, tmp_path: Path) -> None:
    """K12."""
    views = [chunk(index, size) for index, size in enumerate([0, 4, 40, 4_000, 40_000, 250_000, 3_000_000] * 2)]
    views += [chunk(index) for index in range(1_000)]
    async with both_ends(kind, tmp_path) as (one, other):
        for here, there in ((one, other), (other, one)):
            assert here.link is not None
            for view in views:
                here.link.send([view])
            await there.until(partial(has, there, len(views)))
            assert there.bodies == [view.body for view in views]
            with trio.fail_after(PATIENCE):
                await here.link.flushed()
            assert here.link.bytes_queued == 0


@every_kind
async def test_an_end_reaches_the_other_side_after_all_that_was_sent(kind: str, tmp_path: Path) -> None:
    """K12."""
    async with both_ends(kind, tmp_path) as (one, other):
        assert one.link is not None
        assert other.link is not None
        other.link.send([chunk(0)])
        one.link.send([chunk(index, 40_000) for index in range(20)])
        await one.link.flushed()
        one.link.close()
        await other.until(lambda: other.reasons)
        await one.until(lambda: one.reasons)
    assert len(other.bodies) == 20
    assert other.reasons == ["the other side closed the link"]
    assert (one.end, other.end) == (LinkEnd.CLOSED, LinkEnd.EOF)


@every_kind
async def test_what_cannot_be_read_ends_the_link_after_the_good_frames(kind: str, tmp_path: Path) -> None:
    async with both_ends(kind, tmp_path) as (one, other):
        assert one.link is not None
        one.link.send([chunk(0)])
        one.link._outbox.append(b"Loading model...\n")
        await other.until(lambda: other.reasons)
        await one.until(lambda: one.reasons)
    assert other.bodies == [chunk(0).body]
    assert other.end is LinkEnd.VIOLATION
    assert "at stream offset" in other.reasons[0]


@every_kind
async def test_a_link_that_nobody_reads_holds_what_was_sent_and_no_more(kind: str, tmp_path: Path) -> None:
    async def read_nothing(link: ByteLink) -> None:
        await trio.sleep_forever()

    other = End()
    async with linked(way(kind, tmp_path), other.use, read_nothing):
        link = await other.connected()
        for index in range(100):
            link.send([chunk(index, 100_000)])
        await trio.sleep(0.02)
        assert 0 < link.bytes_queued < 10_100_000
    assert link.bytes_queued == 0


@pytest.mark.parametrize(("message", "why"), [("text", "a text message"), (b"\0" * (LARGEST_MESSAGE + 1), "1009")])
async def test_messages_that_no_link_sends_end_it(message: str | bytes, why: str) -> None:
    """K13."""
    end = End()
    async with (
        doorway(way("ws"), end.use) as (_, address),
        await trio.open_tcp_stream(address.host, address.port) as stream,
        background() as nursery,
    ):
        headers = [(b"Authorization", TOKEN.authorization)]
        peer = await wrap_client_stream(nursery, stream, address.host, address.path, extra_headers=headers)
        body = chunk(0).body
        whole = len(body).to_bytes(4, "big") + body
        for cut in (3, 9, len(whole)):
            await peer.send_message(whole[:cut])
            whole = whole[cut:]
        await end.until(lambda: end.bodies == [body])
        await peer.send_message(message)
        await end.until(lambda: end.reasons)
    assert end.end is LinkEnd.BROKEN
    assert why in end.reasons[0]
