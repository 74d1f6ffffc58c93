"""The life of a cartridge is a table, and every pair that is not in it is refused."""

from __future__ import annotations

from itertools import product

import pytest

from capdag.errors import LocalProtocolError
from capdag.host.lifecycle import QUEUING, SERVING, STARTABLE, TRANSITIONS, Event, State, move


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_pair_moves_or_is_refused(state: State, event: Event) -> None:
    """H3."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(LocalProtocolError, match=f"{state} cannot take the event {event}"):
            move(state, event)
    else:
        assert move(state, event) is after


def test_every_state_but_the_broken_takes_or_keeps_a_request() -> None:
    """H3."""
    assert frozenset(State) - STARTABLE - QUEUING - SERVING == {State.BROKEN}
    for state in STARTABLE:
        assert move(state, Event.START) is State.STARTING


def test_process_ends_from_every_state_it_may_have() -> None:
    """H3."""
    for state in QUEUING | SERVING:
        assert move(state, Event.GONE) is State.DEAD
