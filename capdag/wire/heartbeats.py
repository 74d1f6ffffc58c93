"""HEARTBEATs of another side: which are probes, and how many are answered (protocol-spec/wire.md, Heartbeats)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from .frame import MessageId, show_value
from .view import FrameView

PROBES_A_SECOND = 16
"""Probes that are answered in one second at most."""

_COUNTS = ("drops_total", "stragglers_total", "overruns_total")
_SIZES = ("footprint_mb", "rss_mb")
_OF_A_REPLY = frozenset({"pools", *_COUNTS})


def is_reply(view: FrameView) -> bool:
    """True for a HEARTBEAT with the meta of a reply, which no probe has. A reply is never answered."""
    return not _OF_A_REPLY.isdisjoint(view.meta)


class Beat(Enum):
    """What a HEARTBEAT is that is no reply to a probe of ours. Only a probe is answered."""

    PROBE = auto()
    REPLY = auto()
    """It has the meta of a reply."""
    REPEATED = auto()
    """Its id was answered within the same second: it answers our answer."""
    FLOOD = auto()
    """It is one too many."""


class Probes:
    """The probes that one side of a link sends, as the other side answers them.

    A side that answers every HEARTBEAT answers our answers too. It is never told so: the two would not end.
    """

    __slots__ = ("_answered", "_since")

    def __init__(self) -> None:
        self._since = -math.inf
        self._answered: set[MessageId] = set()

    def judge(self, view: FrameView, now: float) -> Beat:
        """Say what a HEARTBEAT is; one that is a PROBE has to be answered. `now`: seconds of one clock."""
        if is_reply(view):
            return Beat.REPLY
        if now - self._since >= 1:
            self._since = now
            self._answered.clear()
        if view.id in self._answered:
            return Beat.REPEATED
        if len(self._answered) >= PROBES_A_SECOND:
            return Beat.FLOOD
        self._answered.add(view.id)
        return Beat.PROBE


def read_report(meta: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    """Read the numbers of a reply. Returns those that are there, and what is wrong with its meta, each by its key."""
    numbers: dict[str, int] = {}
    faults = [] if "pools" in meta else ["pools must be there, as bytes of JSON: those of HELLO stand until they are"]
    for key in (*_COUNTS, *_SIZES):
        if key not in meta:
            continue
        value = meta[key]
        if type(value) is int and value >= 0:
            numbers[key] = value
        elif key in _SIZES and type(value) is float and 0 <= value < math.inf:
            numbers[key] = int(value)
        else:
            faults.append(f"{key} must be an integer of at least 0, not {show_value(value)}: it is not counted")
    return numbers, faults
