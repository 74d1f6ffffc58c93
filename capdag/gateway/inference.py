"""One inference request: from its body to a call, and from the call's events to the reply."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4

import trio

from capdag.client import Argument, Call, CallEvent, Client, Ended, Logged, StreamStarted, Value
from capdag.errors import AttributionClass, RequestFailedError
from capdag.transport.background import ungrouped
from capdag.wire import CancelReason

from .bodies import Reader
from .catalogue import check_abilities, find_model, request_cap
from .connection import Reply
from .errors import api_error
from .render import Heading, StreamedAnswer, WholeAnswer
from .settings import GatewaySettings
from .shapes import Shape
from .sse import event

_STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)


_SHUTTING_DOWN = CancelReason("ABORTED", AttributionClass.ENVIRONMENT, "the server is shutting down: try again")


class Endpoint(NamedTuple):
    """What makes a route: how its body is read and what its answer looks like."""

    read: Reader
    shape: Shape


class Inference:
    """Answers requests by calling capabilities. Leaving a call, for whatever reason, cancels it at the cartridge."""

    def __init__(self, client: Client, settings: GatewaySettings) -> None:
        self._client = client
        self._settings = settings
        self._running: set[Call] = set()

    def interrupt(self) -> None:
        """End every running request with an error that its client is told.

        The calls fail, their writers are not cancelled: half a head or half an event could not be told from garbage.
        """
        for call in tuple(self._running):
            call.cancel(_SHUTTING_DOWN)

    async def answer(self, endpoint: Endpoint, body: bytes, reply: Reply, caller: str) -> bytes | None:
        """Answer one request: return the body of a whole answer, or None after a stream has been written to `reply`.

        Where requests have to wait, callers take turns: `caller` says whose this is.

        Raises ApiError if the request failed before anything was written.
        """
        asked = endpoint.read(body)
        capabilities = (*self._client.capabilities(), *self._client.away())
        model = find_model(capabilities, asked.model, endpoint.shape.operation)
        cap = request_cap(endpoint.shape.operation, model.slug, frozenset(asked.abilities))
        if asked.abilities:
            check_abilities(capabilities, cap, model, asked.abilities)
        heading = Heading(f"{endpoint.shape.id_prefix}{uuid4().hex}", int(time.time()), model.id)
        answering: _Streaming | _Collecting
        limit = None
        if asked.stream:
            rendered = StreamedAnswer(endpoint.shape, heading, asked.choices, include_usage=asked.include_usage)
            answering = _Streaming(rendered, reply, self._settings)
        else:
            answering = _Collecting(WholeAnswer(endpoint.shape, heading, asked.choices))
            limit = self._settings.answer_limit
        try:
            return await self._run(answering, cap, Argument(_media_of(endpoint.shape), asked.body), caller, limit)
        except RequestFailedError as failure:
            error = api_error(failure, started=answering.started)
            if not reply.begun:
                raise error from None
            # Returning with the body unfinished aborts it, after the client has been told why.
            await reply.write(event(error.body()))
            return None

    async def _run(
        self, answering: _Streaming | _Collecting, cap: str, argument: Argument, caller: str, limit: int | None
    ) -> bytes | None:
        with ungrouped():
            async with self._client.call(cap, [argument], caller=caller, answer_limit=limit) as call:
                self._running.add(call)
                try:
                    return await answering.run(call)
                finally:
                    self._running.discard(call)


class _Collecting:
    """An answer that is told when it is complete, so that every failure has its status."""

    def __init__(self, rendered: WholeAnswer) -> None:
        self.started = False
        self._rendered = rendered

    async def run(self, call: Call) -> bytes | None:
        async for batch in call.batches():
            values, started, _ = _sorted(batch)
            self.started |= started
            self._rendered.take(values)
        return self._rendered.body()


class _Streaming:
    """An answer that is told as it comes. What is ready together goes out in one write, and nothing waits."""

    def __init__(self, rendered: StreamedAnswer, reply: Reply, settings: GatewaySettings) -> None:
        self.started = False
        self._rendered = rendered
        self._reply = reply
        self._heartbeat = settings.heartbeat
        self._speak_at = trio.current_time() + settings.commit_after
        self._queue_position: int | None = None

    async def run(self, call: Call) -> None:
        batches = call.batches()
        while True:
            with trio.move_on_at(self._speak_at) as silence:
                batch = await anext(batches, None)
            if silence.cancelled_caught:
                await self._speak()
            elif batch is None:
                return
            else:
                await self._forward(batch)

    async def _forward(self, batch: Sequence[CallEvent]) -> None:
        values, started, ended = _sorted(batch)
        self.started |= started
        for item in batch:
            if isinstance(item, Logged) and item.record.level in ("queued", "dequeued"):
                position = (item.record.extra or {}).get("position")
                self._queue_position = position if type(position) is int else None
        data = self._rendered.render(values)
        if ended:
            data += self._rendered.end()
        if started or ended:
            await self._commit()
        if ended:
            await self._reply.finish(data)
        elif data:
            await self._reply.write(data)
            self._speak_at = trio.current_time() + self._heartbeat

    async def _speak(self) -> None:
        """End a silence: the first time with the headers, then with empty chunks."""
        self._speak_at = trio.current_time() + self._heartbeat
        if self._reply.begun:
            await self._reply.write(self._rendered.heartbeat(self._queue_position))
        else:
            await self._commit()

    async def _commit(self) -> None:
        if not self._reply.begun:
            self._speak_at = trio.current_time() + self._heartbeat
            await self._reply.begin(200, _STREAM_HEADERS)


def _sorted(batch: Sequence[CallEvent]) -> tuple[list[object], bool, bool]:
    """Return the values of the main output, whether a stream began, and whether the answer ended."""
    values: list[object] = []
    started = ended = False
    for item in batch:
        if isinstance(item, Value):
            if item.stream.output is None:
                values.append(item.value)
        elif isinstance(item, StreamStarted):
            started = True
        elif isinstance(item, Ended):
            ended = True
    return values, started, ended


def _media_of(shape: Shape) -> str:
    return f"media:{shape.operation}-request;enc=utf-8;fmt=json;record"
