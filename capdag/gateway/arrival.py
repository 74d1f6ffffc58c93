"""Bodies of requests as they arrive, and the memory that all of them together may take."""

from __future__ import annotations

import trio

from .errors import ApiError

SMALL_BODY = 64 * 1024
"""Bytes up to which a body is not counted: the head of a request may be as large. So whoever fills the room with large
bodies keeps out large ones only."""

_LINGER = 2.0
"""Seconds that a client has for sending the rest of a body which has been refused."""


class BodyRoom:
    """What bodies may hold: one of them `body_limit` bytes, all of them together `bodies_limit`."""

    def __init__(self, body_limit: int, bodies_limit: int) -> None:
        self._body_limit = body_limit
        self._bodies_limit = bodies_limit
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes that are counted now."""
        return self._held

    def refusal(self, size: int, counted: int = 0) -> ApiError | None:
        """Return why a body of `size` bytes, of which `counted` have room already, cannot be taken, if so."""
        for key, limit in (("body_limit", self._body_limit), ("bodies_limit", self._bodies_limit)):
            if size > limit:
                why = f"the body is over {limit:,} bytes: send less, or raise {key} of [gateway]"
                return ApiError(413, "request_too_large", why)
        if size <= SMALL_BODY or self._held - counted + size <= self._bodies_limit:
            return None
        why = f"other requests' bodies fill the {self._bodies_limit:,} bytes of bodies_limit of [gateway]: try again"
        return ApiError(503, "bodies_limit_reached", why, retry=True)

    def count(self, difference: int) -> None:
        """Count that many bytes more, or less."""
        self._held += difference


class Arrival:
    """The body of a request as it arrives. It has its room until `release`: what is asked for is held that long."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._counted = 0
        self._data = bytearray()
        self._size = 0
        self._refusal: ApiError | None = None
        self._usable = trio.Event()
        self._finished = trio.Event()

    def expect(self, announced: int | None) -> None:
        """Take room for the size that the head announces, before anything of it is read."""
        if announced is not None:
            self._make_room(announced)

    def take(self, data: bytes, more: bool) -> None:
        """Take the next piece. What has no room is dropped."""
        self._size += len(data)
        if self._refusal is None and self._size > self._counted:
            self._make_room(self._size)
        if self._refusal is None:
            self._data += data
        if not more:
            self._finished.set()
            self._usable.set()

    def _make_room(self, size: int) -> None:
        self._refusal = self._room.refusal(size, self._counted)
        if self._refusal is not None:
            self.release()
            self._usable.set()
        elif size > SMALL_BODY:
            self._room.count(size - self._counted)
            self._counted = size

    def release(self) -> None:
        """Give up the room, and what is held."""
        self._room.count(-self._counted)
        self._counted = 0
        self._data = bytearray()

    async def whole(self, deadline: float) -> bytes:
        """Return the whole body, once.

        Raises ApiError: 413 for one that is too large, 503 where there is no room for it now, 408 if it has not come in
        `deadline` seconds.
        """
        with trio.move_on_after(deadline):
            await self._usable.wait()
        if self._refusal is not None:
            raise self._refusal
        if not self._usable.is_set():
            raise ApiError(
                408, "request_timeout", f"the body did not arrive in {deadline:g} s: send it again", retry=None
            )
        data, self._data = bytes(self._data), bytearray()
        return data

    @property
    def finished(self) -> bool:
        """Whether the client has sent all."""
        return self._finished.is_set()

    async def finish(self) -> None:
        """Let the client finish sending: closing before resets the connection, and it may lose the reply."""
        with trio.move_on_after(_LINGER):
            await self._finished.wait()
