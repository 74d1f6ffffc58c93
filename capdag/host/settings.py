"""What a host is given: its cartridges and its settings (protocol-spec/host.md, Registration)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import msgspec

from capdag.errors import ConfigError
from capdag.urn import CapUrn, UrnError
from capdag.wire import DEFAULT_LIMITS, Limits, NetworkPolicy
from capdag.wire.requests import DEFAULT_TABLE_LIMIT
from capdag.wire.streams import MAX_STREAMS

from .debt import stream_debt


class CartridgeRecord(msgspec.Struct, frozen=True):
    """One cartridge that a host may start.

    `id` is unique within the host; `command` the program and its arguments; `caps` the manifest cap objects known
    before the first start, which route and are advertised until the manifest replaces them; `settings` reach the
    cartridge as JSON in CAPDAG_CONFIG; `env` and `cwd` are those of its process. `keep_alive`: the seconds after which
    a process that holds nothing is stopped (infinite: never), where None leaves it to the host's `idle_timeout`. `warm`
    has it started with the host. `pools` are the sizes asked of its pools, as by `HostRuntime.set_capacities`.
    """

    id: str
    command: Sequence[str]
    caps: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = {}
    env: Mapping[str, str] = {}
    cwd: str | PathLike[str] | None = None
    keep_alive: float | None = None
    warm: bool = False
    pools: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        """Raise ConfigError for a cap that is no cap URN, an empty command, or a time or size that cannot be."""
        if not self.command:
            raise ConfigError(f"cartridge {self.id!r} has an empty command: give the program and its arguments")
        if self.keep_alive is not None and not self.keep_alive > 0:
            raise ConfigError(f"keep_alive of cartridge {self.id!r} must be above 0 seconds, not {self.keep_alive}")
        for pool, size in self.pools.items():
            if type(size) is not int or size < 0:
                what = f"the capacity of pool {pool!r} of cartridge {self.id!r}"
                raise ConfigError(f"{what} must be an integer of at least 0, not {size!r}")
        for cap in self.caps:
            try:
                CapUrn.parse(str(cap.get("urn")))
            except UrnError as error:
                raise ConfigError(f"cartridge {self.id!r}: cap {cap.get('urn')!r}: {error}") from None


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a host; times in seconds, sizes in bytes."""

    limits: Limits = DEFAULT_LIMITS
    """Proposed to every cartridge and advertised until a cartridge agrees on smaller ones."""
    policy: NetworkPolicy | None = None
    """The network policy before the relay sends one; without any, requests are refused."""
    handshake_timeout: float = 30.0
    """For the HELLO of a new process."""
    identity_timeout: float = 10.0
    """For the identity check that follows it."""
    first_pause: float = 1.0
    """Pause after the first start that fails by exit or timeout, or the second crash in a row; it doubles each time."""
    longest_pause: float = 60.0
    heartbeat_interval: float = 30.0
    heartbeat_timeout: float = 10.0
    """Without a reply for so long a cartridge is unhealthy; it is killed when the next probe would be due."""
    cancel_grace_idle: float = 5.0
    """For the terminal of a cancelled request when its process holds nothing else; then the process is killed."""
    cancel_grace_busy: float = 30.0
    """The same when the process serves other requests, which the kill would abort."""
    call_grace: float = 60.0
    """For the terminal of a call that a cartridge made and that was cancelled; longer than a switch's own deadline."""
    stop_grace: float = 4.0
    """For a process to end, half of it after its stdin has closed and half after SIGTERM, before it is killed."""
    exit_patience: float = 0.5
    """For a process whose stdout has ended to exit by itself, so that its own status can be told; then it is ended."""
    idle_timeout: float | None = None
    """A process that held nothing for so long is stopped; None keeps it."""
    keep_warm: float = 300.0
    """How long processes that hold nothing are kept while no relay is attached; then they are stopped."""
    retire_timeout: float = 600.0
    """For what a cartridge holds when it leaves the roster; then it is killed."""
    flush_timeout: float = 5.0
    """For what an ordered shutdown still has to say to the relay."""
    republish_interval: float = 2.0
    """Between two advertisements with fresh counts while anything runs."""
    table_limit: int = DEFAULT_TABLE_LIMIT
    """Live requests in each direction before new ones are refused."""
    max_streams: int = MAX_STREAMS
    """Streams that a cartridge may open in one request."""
    debt_limit: int = 64 << 30
    """What all open streams together may come to, window x max_chunk each, before no more are opened."""

    def __post_init__(self) -> None:
        """Raise ConfigError for values that contradict each other."""
        if not 0 < self.heartbeat_timeout < self.heartbeat_interval:
            raise ConfigError(
                f"heartbeat_timeout must be above 0 and below heartbeat_interval, not {self.heartbeat_timeout:g} "
                f"with an interval of {self.heartbeat_interval:g}"
            )
        if self.debt_limit < stream_debt(self.limits):
            raise ConfigError(
                f"debt_limit must be at least one stream's window, {stream_debt(self.limits)} bytes (initial_credit x "
                f"max_chunk), not {self.debt_limit}"
            )

    def pause_after(self, failures: int) -> float:
        """Return the pause after so many failed starts in a row (1 or more)."""
        return float(min(self.longest_pause, self.first_pause * 2 ** min(failures - 1, 30)))
