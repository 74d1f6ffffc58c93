"""The four limits of a link and their negotiation (protocol-spec/wire.md, Limits)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from capdag.errors import RemoteProtocolError

from .frame import show_value

HARD_MAX_FRAME = 16_777_216
"""No frame body may be longer than this, whatever was negotiated (bytes)."""

XID_HEADROOM = 10
"""Bytes kept free under max_frame for the routing id that a switch adds."""

PAYLOAD_HEADROOM = 5
"""A scalar byte piece of max_chunk bytes gains up to this many bytes of CBOR head."""

MOST_BESIDES_PAYLOAD = 65_536
"""Bytes that a STREAM_START or a CHUNK may take besides its payload: names and meta. Credit bounds payloads only."""


class Limits(NamedTuple):
    """What one link agreed on: sizes in bytes, the reorder buffer in frames, credit in CHUNKs per stream."""

    max_frame: int = 3_670_016
    max_chunk: int = 262_144
    max_reorder_buffer: int = 64
    initial_credit: int = 32

    def negotiate(self, other: Limits) -> Limits:
        """Return the smaller of both values, limit by limit."""
        return Limits(*map(min, self, other))

    @property
    def read_limit(self) -> int:
        """Longest frame body a reader accepts (bytes)."""
        return min(self.max_frame, HARD_MAX_FRAME)


DEFAULT_LIMITS = Limits()

LEAST_LIMITS = Limits(16_384, 1_024, 8, 2)
"""What a cartridge may reduce the limits to: its host's other cartridges have to live with them (see `check_least`)."""


def read_limits(meta: Mapping[str, object], *, optional: bool = False) -> Limits:
    """Read the four limits out of a HELLO's or RELAY_NOTIFY's meta.

    With `optional` (RELAY_NOTIFY) the reorder buffer and the credit may be left out and take their defaults.
    Raises RemoteProtocolError naming the limit and the value seen.
    """
    values = []
    for position, name in enumerate(Limits._fields):
        if optional and position >= 2 and name not in meta:
            values.append(DEFAULT_LIMITS[position])
            continue
        value = meta.get(name)
        if type(value) is not int or value <= 0:
            raise RemoteProtocolError(f"limit {name} must be an integer above 0, not {show_value(value)}")
        values.append(value)
    return Limits(*values)


def check_least(answered: Limits, offered: Limits) -> None:
    """Check that a cartridge's limits are not below LEAST_LIMITS, or below those offered to it where these are.

    Raises RemoteProtocolError naming the limit, its value and the least.
    """
    for name, value, least in zip(Limits._fields, answered, LEAST_LIMITS.negotiate(offered), strict=True):
        if value < least:
            raise RemoteProtocolError(
                f"HELLO says {name} {value}, and a cartridge must take at least {least}: all cartridges of its host "
                f"would have to do with what it says (answer with the host's {name} if there is no reason for less)"
            )
