"""What the gateway can be told. Every limit that a client can run into is here, with its reason."""

from __future__ import annotations

from typing import NamedTuple

from capdag.client import ANSWER_LIMIT


class GatewaySettings(NamedTuple):
    """Times in seconds, sizes in bytes."""

    commit_after: float = 10.0
    """A streamed answer gets its 200 at the latest now, even if the model is still loading: some clients wait only
    30 s for headers. A failure after that is told inside the stream."""

    heartbeat: float = 15.0
    """Longest silence inside a stream: an empty chunk goes out then, for clients with timers between chunks."""

    write_deadline: float = 30.0
    """A client that takes nothing for this long is dropped, and its request cancelled."""

    idle_limit: float = 20.0
    """How long a connection may stay without a request, and take for sending the head of one."""

    body_deadline: float = 60.0
    """How long the body of a request may take to arrive."""

    body_limit: int = 50 * 1024 * 1024
    """Largest body of a request."""

    bodies_limit: int = 256 * 1024 * 1024
    """What the bodies over 64 KiB of all requests may have together, from the head of a request to its end: they are
    held as long."""

    answer_limit: int = ANSWER_LIMIT
    """Largest answer that is not streamed, in bytes of its frames (about 90 a token): it is held until it is complete,
    and a model need not stop."""

    drain: float = 4.0
    """At shutdown: how long running requests may go on before they are ended with an error."""

    last_words: float = 1.0
    """At shutdown, after `drain`: how long clients have for taking that error before connections are cut."""

    allowed_hosts: tuple[str, ...] = ()
    """Names, besides those of this machine, that a Host header may carry when listening on loopback only."""


DEFAULT_SETTINGS = GatewaySettings()
