"""Outputs of tasks, without a process: whose turn it is, and what a cancelled write leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from capdag.cartridge import RequestCancelledError
from capdag.cartridge._async_output import AsyncOutput
from capdag.cartridge._outbound import Head
from capdag.cartridge._writer import Flow
from capdag.errors import AttributionClass, LocalProtocolError
from capdag.wire import DEFAULT_LIMITS, Failure, Frame, FrameType, InStreams, decode_frame, view_of

LIMITS = DEFAULT_LIMITS._replace(initial_credit=1, max_chunk=10)
ITEMS = "media:item;list"


class Line:
    """Takes what is sent."""

    is_behind = False

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def post(self, frame: Frame, flow: Flow | None = None, *, terminal: bool = False) -> None:
        self.frames.append(frame)

    def post_built(self, flow: Flow, build: Callable[[int], bytes]) -> None:
        self.frames.append(decode_frame(build(0)[4:]))

    async def room(self) -> None:
        pass

    def values(self) -> list[Any]:
        """Read everything as a receiver would, that grants without end."""
        streams = InStreams(1000)
        values: list[Any] = []
        for frame in self.frames:
            view = view_of(frame)
            if view.type is FrameType.STREAM_START:
                streams.start(view)
            else:
                values += streams.of(view).chunk(view).values
        return values


def output(line: Line, *, is_sequence: bool = True) -> AsyncOutput:
    """Make an output of a window of one."""
    return AsyncOutput(Head("s", ITEMS, ITEMS, is_sequence), Flow(1, None), LIMITS, line)  # type: ignore[arg-type]


async def test_items_of_two_tasks_do_not_mix(autojump_clock: trio.abc.Clock) -> None:
    line = Line()
    out = output(line)
    async with trio.open_nursery() as nursery:
        for letter in "ab":
            nursery.start_soon(out.item, letter * 25)
        for _ in range(6):
            await trio.sleep(1)
            out._gate.grant(1)
    assert sorted(line.values()) == ["a" * 25, "b" * 25]


async def test_nothing_follows_half_an_item(autojump_clock: trio.abc.Clock) -> None:
    line = Line()
    out = output(line)
    with trio.move_on_after(1):
        await out.item("x" * 25)
    out._gate.grant(1)
    with pytest.raises(LocalProtocolError, match="cancelled half-way"):
        await out.item("y")
    whole = output(Line())
    await whole.item("x")
    with trio.move_on_after(1):
        await whole.item("never begun")
    whole._gate.grant(1)
    await whole.item("y")


async def test_closing_fails_who_waits_and_who_comes(autojump_clock: trio.abc.Clock) -> None:
    line = Line()
    out = output(line, is_sequence=False)
    over = RequestCancelledError(Failure("CANCELLED", AttributionClass.USER, "nobody wants it"))

    async def write() -> None:
        with pytest.raises(RequestCancelledError):
            await out.write("0123456789 and more than one credit's worth")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(1)
        out._gate.close(over)
    for again in (out.write("more"), out.flush(), out.finish()):
        with pytest.raises(RequestCancelledError):
            await again
    assert line.values() == ["0123456789"]


async def test_held_bytes_go_when_somebody_waits_for_them(autojump_clock: trio.abc.Clock) -> None:
    line = Line()
    out = output(line, is_sequence=False)
    await out.write(b"abc")
    assert line.values() == []
    out.flush_within_credit()
    assert line.values() == [b"abc"]
    await out.write(b"def")
    out.flush_within_credit()
    assert line.values() == [b"abc"], "there is no credit"
    out._gate.grant(1)
    await out.finish()
    assert [frame.frame_type for frame in line.frames][-2:] == [FrameType.CHUNK, FrameType.STREAM_END]
    with pytest.raises(LocalProtocolError, match="has ended"):
        await out.write(b"more")
    with pytest.raises(LocalProtocolError, match="use write"):
        await out.item(1)
