"""What an async handler is given: inputs that wait in a task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from capdag.wire import InStream

from ._inbound import InputCore, Item, Streams, Wait

if TYPE_CHECKING:
    import trio
else:
    from ._lazy import trio

T = TypeVar("T")


class Bell:
    """What tasks wait for instead of a condition. Everything happens in one thread, so that there is no lock."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def notify_all(self) -> None:
        """Wake every task that waits."""
        self._rung.set()
        self._rung = trio.Event()

    async def wait(self) -> None:
        """Wait until it is rung. Who is cancelled after that, and before its turn, hears of it all the same."""
        await self._rung.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class AsyncInput(InputCore):
    """One argument, or one output of a call. Iterating gives its values (scalar: one a CHUNK; sequence: its items) as
    they come; each value taken lets the sender send more. To be read by one task.

    Everything is a checkpoint: a cancelled request raises `trio.Cancelled` here. Raises RequestFailedError with the
    sender's own code if the sender gave up, CartridgeError INVALID_REQUEST if a required argument does not come, and
    RequestCancelledError in clean-up that shields itself once the request is over.
    """

    def __init__(self, source: Streams, media_urn: str, *, is_required: bool) -> None:
        super().__init__(source, media_urn, is_required=is_required)
        assert isinstance(source.changed, Bell)
        self._changed = source.changed

    async def given(self) -> bool:
        """Return True if the caller sent this argument, once that is known."""
        return await self._wait_for_stream() is not None

    async def media_urn(self) -> str:
        """Return the media URN the caller gave the stream, or the declared one if an optional argument was not sent."""
        return self._media(await self._wait_for_stream())

    async def is_sequence(self) -> bool:
        """Return True if the caller sends items, once that is known."""
        stream = await self._wait_for_stream()
        return stream is not None and (self._feed is not None or stream.head.is_sequence)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _Picked(self, itemgetter(0))

    def items(self) -> AsyncIterator[Item]:
        """Iterate over the values with their meta: `item.value`, `item.meta`."""
        return _Picked(self, lambda item: item)

    async def read(self) -> bytes:
        """Return the whole input as bytes: see `Input.read`."""
        stream = await self._wait_for_stream()
        if self._whole is None:
            self._begin_whole(stream)
            parts: list[bytes] = []
            while (item := await self._next()) is not None:
                self._joined(parts, item[0])
            self._whole = b"".join(parts)
        return self._whole

    async def text(self) -> str:
        """Return the whole input as text: see `Input.text`."""
        from ._typed import decode_text

        return decode_text(self._bad, await self.read())

    async def json(self, kind: type[T]) -> T:
        """Return the whole input, JSON, as a value of type `kind`: see `Input.json`."""
        from ._typed import decode_json

        return decode_json(self._bad, await self.read(), kind)

    def each(self, kind: type[T]) -> AsyncIterator[T]:
        """Iterate over the values, each checked and converted to type `kind`: see `Input.each`."""
        from ._typed import convert

        numbers = count()
        return _Picked(self, lambda item: convert(self._bad, next(numbers), item.value, kind))

    async def _wait_for_stream(self) -> InStream | None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            stream = self._known()
            if not isinstance(stream, Wait):
                return stream
            await self._changed.wait()

    async def _next(self) -> Item | None:
        # Not a full checkpoint: what a task can take without waiting is one window, and that costs less than a turn.
        await trio.lowlevel.checkpoint_if_cancelled()
        told = False
        while True:
            taken, grant = self._take()
            if grant:
                self._grant(grant)
            if not isinstance(taken, Wait):
                return taken
            if grant:
                continue
            if not told:
                self._source.before_wait()
                told = True
            await self._changed.wait()


class _Picked(AsyncIterator[T]):
    """Something of every item. No async generator: one that is left half-way would have to be closed."""

    def __init__(self, source: AsyncInput, pick: Callable[[Item], T]) -> None:
        source._check_unread()
        self._source = source
        self._pick = pick

    async def __anext__(self) -> T:
        item = await self._source._next()
        if item is None:
            raise StopAsyncIteration
        return self._pick(item)
