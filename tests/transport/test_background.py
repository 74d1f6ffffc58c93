"""Tasks that run as long as a block, and what leaves it when it fails."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from capdag.transport.background import background


async def test_an_error_beside_which_others_were_cancelled_leaves_alone(autojump_clock: MockClock) -> None:
    """A failure and the caller's own timeout may come in one moment: who catches the failure must find it."""

    async def fail_when_cancelled() -> None:
        async with background(trio.sleep_forever):
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("mine")

    with trio.move_on_after(1) as scope:
        with pytest.raises(ValueError, match="mine"):
            await fail_when_cancelled()
        assert scope.cancel_called


async def test_several_errors_leave_as_a_group(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise ValueError("theirs")

    with pytest.raises(ExceptionGroup) as caught:
        async with background(fail):
            raise OSError("mine")
    assert sorted(str(error) for error in caught.value.exceptions) == ["mine", "theirs"]


async def test_a_cancelled_block_is_cancelled(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        async with background(trio.sleep_forever):
            await trio.sleep_forever()
    assert scope.cancelled_caught
