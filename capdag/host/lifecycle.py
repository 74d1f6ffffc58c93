"""The life of a cartridge as a table (protocol-spec/host.md, Life of a cartridge)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from capdag.errors import LocalProtocolError


class State(StrEnum):
    """Where a cartridge is. DEAD starts again at the next request, BROKEN only after a reset."""

    REGISTERED = "registered"
    STARTING = "starting"
    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    STOPPING = "stopping"
    DEAD = "dead"
    BROKEN = "broken"


class Event(StrEnum):
    """What moves a cartridge on."""

    START = "start"
    READY = "ready"
    LATE = "late"
    HEALED = "healed"
    STOP = "stop"
    GONE = "gone"
    REFUSED = "refused"
    RESET = "reset"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.REGISTERED, Event.START): State.STARTING,
    (State.DEAD, Event.START): State.STARTING,
    (State.STARTING, Event.READY): State.RUNNING,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.STARTING, Event.GONE): State.DEAD,
    (State.STARTING, Event.REFUSED): State.BROKEN,
    (State.RUNNING, Event.LATE): State.UNHEALTHY,
    (State.RUNNING, Event.STOP): State.STOPPING,
    (State.RUNNING, Event.GONE): State.DEAD,
    (State.UNHEALTHY, Event.HEALED): State.RUNNING,
    (State.UNHEALTHY, Event.STOP): State.STOPPING,
    (State.UNHEALTHY, Event.GONE): State.DEAD,
    (State.STOPPING, Event.GONE): State.DEAD,
    (State.DEAD, Event.RESET): State.REGISTERED,
    (State.BROKEN, Event.RESET): State.REGISTERED,
}
"""Every move there is. A process exists from START to GONE or REFUSED."""

STARTABLE = frozenset({State.REGISTERED, State.DEAD})
"""A request starts the process."""

QUEUING = frozenset({State.STARTING, State.STOPPING})
"""A request waits: for the process to be ready, or for it to be gone and another to start."""

SERVING = frozenset({State.RUNNING, State.UNHEALTHY})
"""A process is past its handshake and takes frames."""


def move(state: State, event: Event) -> State:
    """Return the state after `event`. Raises LocalProtocolError for a move that the table does not have."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise LocalProtocolError(f"a cartridge that is {state} cannot take the event {event}") from None
