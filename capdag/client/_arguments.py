"""The arguments of a call on their way out, each under its own credit."""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from contextlib import aclosing
from inspect import isasyncgen
from typing import Any

import trio

from capdag.relay import Request
from capdag.transport.background import ungrouped
from capdag.wire import (
    Frame,
    FrameType,
    FrameView,
    SendWindow,
    body_end_frame,
    fnv1a_64,
    item_payloads,
    scalar_payloads,
)

from ._events import Argument

_CHUNK_HEADROOM = 128
"""Bytes under max_frame kept for the rest of a CHUNK, where a host's max_chunk leaves none."""

_BURST = 16
"""CHUNKs put together before others get their turn."""


class Sender:
    """Sends all arguments side by side, since a handler may read the last one first, and then the body's END."""

    def __init__(self, request: Request, arguments: Sequence[Argument]) -> None:
        self._request = request
        self._outs = [_Out(request, f"arg-{index}", argument) for index, argument in enumerate(arguments)]

    async def run(self) -> None:
        """Send the body. What an argument's own iterable raises passes through."""
        last: list[Frame] = []
        if len(self._outs) == 1:
            last = await self._outs[0].run()
        else:
            with ungrouped():
                async with trio.open_nursery() as nursery:
                    for out in self._outs:
                        nursery.start_soon(out.run_beside_others)
        self._request.send([*last, body_end_frame(self._request.rid)])

    def grant(self, view: FrameView) -> None:
        """Take a CREDIT. One without stream_id is for the only argument still open."""
        if view.stream_id is None:
            outs = [out for out in self._outs if not out.done]
            chosen = outs if len(outs) == 1 else []
        else:
            chosen = [out for out in self._outs if out.stream_id == view.stream_id]
        for out in chosen:
            out.grant(view.fields[19])


class _Out:
    """One argument's stream."""

    def __init__(self, request: Request, stream_id: str, argument: Argument) -> None:
        self.stream_id = stream_id
        self.done = False
        self._request = request
        self._argument = argument
        self._index = 0
        limits = request.limits
        self._window = SendWindow(limits.initial_credit)
        self._max_chunk = max(1, min(limits.max_chunk, limits.max_frame - _CHUNK_HEADROOM))
        self._granted = trio.Event()

    def grant(self, credit: int) -> None:
        self._window.grant(credit)
        self._granted.set()

    async def run_beside_others(self) -> None:
        """Send all of it."""
        self._request.send(await self.run())

    async def run(self) -> list[Frame]:
        """Send all of it but what is returned, which can go at once: frames that go together cost one wake-up of
        whoever reads them."""
        argument = self._argument
        frames = [self._frame(FrameType.STREAM_START, media_urn=argument.media_urn, is_sequence=argument.is_sequence)]
        data = argument.data
        if isinstance(data, bytes):
            await self._send_value(data, frames)
        elif isasyncgen(data):
            async with aclosing(data):
                await self._send_all(data, frames)
        else:
            await self._send_all(data, frames)
        self.done = True
        return [*frames, self._frame(FrameType.STREAM_END, chunk_count=self._index)]

    async def _send_all(self, values: AsyncIterable[Any], frames: list[Frame]) -> None:
        self._send(frames)
        async for value in values:
            await self._send_value(value, frames)
            self._send(frames)

    async def _send_value(self, value: Any, frames: list[Frame]) -> None:
        """Send as many CHUNKs at a time as credit allows; the last ones are left in `frames`."""
        make = item_payloads if self._argument.is_sequence else scalar_payloads
        for payload in make(value, self._max_chunk):
            if not self._window.take():
                self._send(frames)
                await self._wait_for_credit()
            frames.append(self._chunk(payload))
            if len(frames) >= _BURST:
                self._send(frames)
                await trio.lowlevel.checkpoint()

    async def _wait_for_credit(self) -> None:
        while not self._window.take():
            self._granted = trio.Event()
            await self._granted.wait()

    def _chunk(self, payload: bytes) -> Frame:
        frame = Frame(
            FrameType.CHUNK,
            self._request.rid,
            stream_id=self.stream_id,
            payload=payload,
            chunk_index=self._index,
            checksum=fnv1a_64(payload),
        )
        self._index += 1
        return frame

    def _frame(self, kind: FrameType, **fields: Any) -> Frame:
        return Frame(kind, self._request.rid, stream_id=self.stream_id, **fields)

    def _send(self, frames: list[Frame]) -> None:
        self._request.send(frames)
        frames.clear()
