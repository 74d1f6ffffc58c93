"""The life of a request, seen from anywhere along its way (protocol-spec/states.md, Requests)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from .frame import FrameType
from .life import COUNT, TAKE, Cell, Table, Verdict, by_state, refuse


class RequestState(StrEnum):
    """Where a request stands."""

    NONE = "none"
    """There is none under this id, or none any more: nothing is kept but the id, among the last ended."""
    BODY = "body"
    """The body may still grow, and the answer too."""
    ANSWER = "answer"
    """The body has ended, well or by the requester's own ERR; the answer has not."""
    CANCELLED = "cancelled"
    """CANCEL has gone to the handler, whose terminal is awaited."""


class Side(StrEnum):
    """The two ends of a request."""

    REQUESTER = "requester"
    HANDLER = "handler"


RequestEvent = tuple[Side, FrameType]
"""Who sends, and what."""

_R, _H, _T = Side.REQUESTER, Side.HANDLER, FrameType
_BEGIN = Cell(Verdict.TAKE, RequestState.BODY)
_BODY_END = Cell(Verdict.TAKE, RequestState.ANSWER)
_CANCEL = Cell(Verdict.TAKE, RequestState.CANCELLED)
_END = Cell(Verdict.TAKE, RequestState.NONE)
_TWICE = refuse("PROTOCOL_VIOLATION", "a request of this id is live: use a new id for each")
_DRAIN: Cell[Any] = Cell(Verdict.DRAIN)
_ELSE: Cell[Any] = Cell(Verdict.ELSEWHERE)

_ROWS = {
    # sent by, type         none    body       answer   cancelled
    (_R, _T.HELLO):        (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_R, _T.REQ):          (_BEGIN, _TWICE,    _TWICE,  _TWICE),
    (_R, _T.CHUNK):        (COUNT,  TAKE,      COUNT,   COUNT),
    (_R, _T.END):          (COUNT,  _BODY_END, COUNT,   COUNT),
    (_R, _T.LOG):          (COUNT,  COUNT,     COUNT,   COUNT),
    (_R, _T.ERR):          (COUNT,  _BODY_END, COUNT,   COUNT),
    (_R, _T.HEARTBEAT):    (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_R, _T.STREAM_START): (COUNT,  TAKE,      COUNT,   COUNT),
    (_R, _T.STREAM_END):   (COUNT,  TAKE,      COUNT,   COUNT),
    (_R, _T.RELAY_NOTIFY): (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_R, _T.RELAY_STATE):  (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_R, _T.CANCEL):       (COUNT,  _CANCEL,   _CANCEL, TAKE),
    (_R, _T.CREDIT):       (COUNT,  TAKE,      TAKE,    COUNT),
    (_R, _T.CLOSE_STREAM): (COUNT,  TAKE,      TAKE,    TAKE),
    (_R, _T.POLICY):       (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_H, _T.HELLO):        (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_H, _T.REQ):          (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_H, _T.CHUNK):        (COUNT,  TAKE,      TAKE,    _DRAIN),
    (_H, _T.END):          (COUNT,  _END,      _END,    _END),
    (_H, _T.LOG):          (COUNT,  TAKE,      TAKE,    _DRAIN),
    (_H, _T.ERR):          (COUNT,  _END,      _END,    _END),
    (_H, _T.HEARTBEAT):    (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_H, _T.STREAM_START): (COUNT,  TAKE,      TAKE,    _DRAIN),
    (_H, _T.STREAM_END):   (COUNT,  TAKE,      TAKE,    _DRAIN),
    (_H, _T.RELAY_NOTIFY): (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_H, _T.RELAY_STATE):  (_ELSE,  _ELSE,     _ELSE,   _ELSE),
    (_H, _T.CANCEL):       (COUNT,  COUNT,     COUNT,   COUNT),
    (_H, _T.CREDIT):       (COUNT,  TAKE,      TAKE,    COUNT),
    (_H, _T.CLOSE_STREAM): (COUNT,  COUNT,     COUNT,   COUNT),
    (_H, _T.POLICY):       (_ELSE,  _ELSE,     _ELSE,   _ELSE),
}  # fmt: skip

REQUEST_LIFE: Table[RequestState, RequestEvent] = by_state(
    (RequestState.NONE, RequestState.BODY, RequestState.ANSWER, RequestState.CANCELLED), _ROWS
)
