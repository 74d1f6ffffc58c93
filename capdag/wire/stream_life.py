"""The life of a stream at its receiver, and of the credit that covers its CHUNKs (protocol-spec/states.md, Streams)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from .frame import FrameType
from .life import TAKE, Cell, Table, Verdict, by_state


class StreamState(StrEnum):
    """Where one stream of one direction of a request stands."""

    NONE = "none"
    OPEN = "open"
    """Between values or items."""
    IN_ITEM = "inside an item"
    ENDED = "ended"


class StreamEvent(StrEnum):
    """What happens to a stream. A CHUNK that leaves an item of a sequence unfinished is a FRAGMENT."""

    START = "STREAM_START"
    CHUNK = "CHUNK"
    FRAGMENT = "CHUNK, item unfinished"
    STREAM_END = "STREAM_END"
    END = "END"
    ERR = "ERR"


STREAM_EVENTS: Mapping[FrameType, tuple[StreamEvent, ...]] = {
    FrameType.STREAM_START: (StreamEvent.START,),
    FrameType.CHUNK: (StreamEvent.CHUNK, StreamEvent.FRAGMENT),
    FrameType.STREAM_END: (StreamEvent.STREAM_END,),
    FrameType.END: (StreamEvent.END,),
    FrameType.ERR: (StreamEvent.ERR,),
}
"""What a frame can mean to a stream of its request. A type that is not here means nothing to one."""


def _fault(why: str) -> Cell[Any]:
    return Cell(Verdict.VIOLATE, None, why)


_E = StreamEvent
_OPEN = Cell(Verdict.TAKE, StreamState.OPEN)
_IN_ITEM = Cell(Verdict.TAKE, StreamState.IN_ITEM)
_END = Cell(Verdict.TAKE, StreamState.ENDED)
_ABSENT = _fault("{type} for stream {stream}, which was never started")
_SECOND = _fault("a second STREAM_START for stream {stream}")
_LATE = _fault("{type} after STREAM_END on stream {stream}")
_CUT = _fault("STREAM_END inside an item of stream {stream}")
_TORN = _fault("END while stream {stream} is open")

STREAM_LIFE: Table[StreamState, StreamEvent] = by_state(
    (StreamState.NONE, StreamState.OPEN, StreamState.IN_ITEM, StreamState.ENDED),
    {
        # event         none     open      in item   ended
        _E.START:      (_OPEN,   _SECOND,  _SECOND,  _SECOND),
        _E.CHUNK:      (_ABSENT, TAKE,     _OPEN,    _LATE),
        _E.FRAGMENT:   (_ABSENT, _IN_ITEM, TAKE,     _LATE),
        _E.STREAM_END: (_ABSENT, _END,     _CUT,     _LATE),
        _E.END:        (TAKE,    _TORN,    _TORN,    TAKE),
        _E.ERR:        (TAKE,    _END,     _END,     TAKE),
    },
)  # fmt: skip


class WindowState(StrEnum):
    """Whether the next CHUNK is covered by credit: the same question at both ends of a stream."""

    CREDIT = "credit"
    EMPTY = "empty"


class WindowEvent(StrEnum):
    """What moves a window: a CHUNK with more credit behind it, the last CHUNK that is covered, a grant."""

    CHUNK = "CHUNK"
    LAST_CHUNK = "CHUNK, the last covered"
    GRANT = "CREDIT"


_W = WindowEvent
_SPENT = Cell(Verdict.TAKE, WindowState.EMPTY)
_FILLED = Cell(Verdict.TAKE, WindowState.CREDIT)
_WAIT: Cell[Any] = Cell(Verdict.WAIT)
_OVERDRAWN = _fault("stream {stream} sent a CHUNK without credit")

SENDER_LIFE: Table[WindowState, WindowEvent] = by_state(
    (WindowState.CREDIT, WindowState.EMPTY),
    {
        # event         credit   empty
        _W.CHUNK:      (TAKE,    _WAIT),
        _W.LAST_CHUNK: (_SPENT,  _WAIT),
        _W.GRANT:      (TAKE,    _FILLED),
    },
)  # fmt: skip

RECEIVER_LIFE: Table[WindowState, WindowEvent] = by_state(
    (WindowState.CREDIT, WindowState.EMPTY),
    {
        # event         credit   empty
        _W.CHUNK:      (TAKE,    _OVERDRAWN),
        _W.LAST_CHUNK: (_SPENT,  _OVERDRAWN),
        _W.GRANT:      (TAKE,    _FILLED),
    },
)  # fmt: skip
