"""Calling capabilities through the switch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from capdag.relay import Capability, Switch
from capdag.transport.background import background

from ._answer import Answer
from ._call import Call
from ._events import Argument

ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of frames that an answer may have which is gathered, unless its caller says otherwise."""


class Client:
    """Calls capabilities that hosts of `switch` serve."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def capabilities(self) -> tuple[Capability, ...]:
        """Return the caps that are served now."""
        return self._switch.capabilities()

    def away(self) -> tuple[Capability, ...]:
        """Return the caps whose host has just gone and is waited for: a call of one waits in line."""
        return self._switch.away()

    @asynccontextmanager
    async def call(
        self,
        cap: str,
        arguments: Sequence[Argument] = (),
        preferred: str | None = None,
        *,
        caller: str = "",
        answer_limit: int | None = None,
    ) -> AsyncIterator[Call]:
        """Call `cap`; the arguments are sent while the block runs.

        `preferred` names what is chosen if it may serve: a cap, a host, or an installed cartridge by its id. A call
        that finds no room waits in line, where callers take turns by the key `caller`; `Logged` tells its position.
        An answer whose frames have more than `answer_limit` bytes is cancelled, and the call fails with
        ANSWER_TOO_LARGE: that is for callers who gather it. Without one, credit alone bounds what is held.

        Leaving the block before the end sends CANCEL at once, also when the block is cancelled. Raises
        RequestFailedError if no host takes the request, and whatever an argument's own iterable raises.
        """
        call = Call(arguments, answer_limit)
        async with background() as nursery:
            call.start(self._switch.open_request(cap, call.deliver, preferred, caller=caller, admitted=call.admitted))
            try:
                nursery.start_soon(call.send_body)
                yield call
            finally:
                call.cancel()

    async def collect(
        self,
        cap: str,
        arguments: Sequence[Argument] = (),
        preferred: str | None = None,
        *,
        caller: str = "",
        answer_limit: int | None = ANSWER_LIMIT,
    ) -> Answer:
        """Call `cap` and return the whole answer. Raises RequestFailedError, for one over `answer_limit` bytes too."""
        answer = Answer()
        async with self.call(cap, arguments, preferred, caller=caller, answer_limit=answer_limit) as call:
            async for batch in call.batches():
                for event in batch:
                    answer.add(event)
        return answer
