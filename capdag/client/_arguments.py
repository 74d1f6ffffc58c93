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
        with ungrouped():
            async with trio.open_nursery() as nursery:
                for out in self._outs:
                    nursery.start_soon(out.run)
        self._request.send([body_end_frame(self._request.rid)])

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

    async def run(self) -> None:
        media, is_sequence = self._argument.media_urn, self._argument.is_sequence
        self._send(FrameType.STREAM_START, media_urn=media, is_sequence=is_sequence)
        data = self._argument.data
        if isinstance(data, bytes):
            await self._send_value(data)
        elif isasyncgen(data):
            async with aclosing(data):
                await self._send_all(data)
        else:
            await self._send_all(data)
        self.done = True
        self._send(FrameType.STREAM_END, chunk_count=self._index)

    async def _send_all(self, values: AsyncIterable[Any]) -> None:
        async for value in values:
            await self._send_value(value)

    async def _send_value(self, value: Any) -> None:
        """Send as many CHUNKs at a time as credit allows."""
        make = item_payloads if self._argument.is_sequence else scalar_payloads
        frames: list[Frame] = []
        for payload in make(value, self._max_chunk):
            if not self._window.take():
                self._request.send(frames)
                frames = []
                await self._wait_for_credit()
            frames.append(self._chunk(payload))
            if len(frames) == _BURST:
                self._request.send(frames)
                frames = []
                await trio.lowlevel.checkpoint()
        self._request.send(frames)

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

    def _send(self, kind: FrameType, **fields: Any) -> None:
        self._request.send([Frame(kind, self._request.rid, stream_id=self.stream_id, **fields)])
