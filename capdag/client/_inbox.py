"""What a call has received and its caller has not taken yet.

Values are bounded by credit. What no credit covers, LOGs above all, is bounded here.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from capdag.errors import RemoteProtocolError
from capdag.wire import InStream

from ._events import CallEvent, Logged

UNCREDITED_LIMIT = 256 * 1024
"""Bytes of frames without credit that one call queues."""


class _Entry(NamedTuple):
    event: CallEvent
    size: int
    """Bytes of its frame, for one that no credit covers."""


class Inbox:
    """Events in order. `dropped_logs` counts the LOGs that were given up; superseded progress does not count."""

    def __init__(self) -> None:
        self.dropped_logs = 0
        self._entries: list[_Entry] = []
        self._uncredited = self._uncredited_entries = 0
        self._owed: Counter[InStream] = Counter()

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def has_values(self) -> bool:
        """True if anything waits that is under credit."""
        return len(self._entries) > self._uncredited_entries

    def add(self, event: CallEvent, size: int = 0) -> None:
        """Queue an event. `size` is that of its frame if no credit covers it.

        Raises RemoteProtocolError if frames that cannot be given up fill the queue.
        """
        self._entries.append(_Entry(event, size))
        self._uncredited += size
        self._uncredited_entries += size > 0
        if self._uncredited > UNCREDITED_LIMIT:
            self._give_up_logs()

    def owe(self, stream: InStream, chunks: int) -> None:
        """Note that `chunks` of a stream are to be granted when the caller has used what is queued."""
        self._owed[stream] += chunks

    def take(self) -> tuple[list[CallEvent], Counter[InStream]]:
        """Return everything queued, and what is to be granted once it has been used."""
        events = [entry.event for entry in self._entries]
        self._entries, self._uncredited, self._uncredited_entries = [], 0, 0
        return events, self.take_owed()

    def take_owed(self) -> Counter[InStream]:
        """Return what is to be granted, leaving the events."""
        owed, self._owed = self._owed, Counter()
        return owed

    def _give_up_logs(self) -> None:
        """Keep the newest progress only, then drop the oldest LOGs down to half the limit, so that a flood costs
        one pass for many LOGs."""
        newest = max((at for at, entry in enumerate(self._entries) if _is_progress(entry)), default=-1)
        kept = [entry for at, entry in enumerate(self._entries) if at == newest or not _is_progress(entry)]
        excess = sum(entry.size for entry in kept) - UNCREDITED_LIMIT // 2
        self._entries = []
        for entry in kept:
            if excess > 0 and isinstance(entry.event, Logged):
                excess -= entry.size
                self.dropped_logs += 1
            else:
                self._entries.append(entry)
        self._uncredited = sum(entry.size for entry in self._entries)
        self._uncredited_entries = sum(entry.size > 0 for entry in self._entries)
        if self._uncredited > UNCREDITED_LIMIT:
            raise RemoteProtocolError(f"more than {UNCREDITED_LIMIT} bytes of STREAM_START frames wait unread")


def _is_progress(entry: _Entry) -> bool:
    return isinstance(entry.event, Logged) and entry.event.record.level == "progress"
