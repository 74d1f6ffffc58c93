"""What each side of a link may send, and when (protocol-spec/states.md, Links).

A link has two senders and each has a table of its own, which its receiver goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NoReturn

from capdag.errors import RemoteProtocolError

from .frame import FrameType
from .life import COUNT, TAKE, Cell, Life, Table, Verdict, by_state, refuse
from .view import FrameView

IDENTITY_CAP = "cap:effect=none"
"""Every cartridge serves it and must spell it exactly so."""


class LinkState(StrEnum):
    """Where one sender stands on a link."""

    SILENT = "silent"
    """It has sent nothing that counts."""
    GREETED = "greeted"
    """It has said its first word. A host has still to send POLICY, a cartridge or a host to prove its identity."""
    OPEN = "open"
    OVER = "over"
    """It broke a rule: nothing more is read from it."""


class LinkEvent(StrEnum):
    """What one sender does: it sends a frame, of some type or one that cannot be read, or it proves its identity."""

    HELLO = "HELLO"
    REQ = "REQ"
    IDENTITY_REQ = "REQ for identity"
    CHUNK = "CHUNK"
    END = "END"
    LOG = "LOG"
    ERR = "ERR"
    HEARTBEAT = "HEARTBEAT"
    STREAM_START = "STREAM_START"
    STREAM_END = "STREAM_END"
    RELAY_NOTIFY = "RELAY_NOTIFY"
    RELAY_STATE = "RELAY_STATE"
    CANCEL = "CANCEL"
    CREDIT = "CREDIT"
    CLOSE_STREAM = "CLOSE_STREAM"
    POLICY = "POLICY"
    PROVED = "identity proved"
    MALFORMED = "malformed frame"


_SENT: Mapping[FrameType, LinkEvent] = {kind: LinkEvent[kind.name] for kind in FrameType}


class Direction(StrEnum):
    """Who sends to whom."""

    HOST_TO_CARTRIDGE = "host to cartridge"
    CARTRIDGE_TO_HOST = "cartridge to host"
    SWITCH_TO_HOST = "switch to host"
    HOST_TO_SWITCH = "host to switch"


def _wrong(why: str) -> Cell[LinkState]:
    return Cell(Verdict.VIOLATE, LinkState.OVER, why)


_E = LinkEvent
_GREETS = Cell(Verdict.TAKE, LinkState.GREETED)
_OPENS = Cell(Verdict.TAKE, LinkState.OPEN)
_NOT_FIRST = _wrong("the first frame must be HELLO, not {type}")
_NEVER = _wrong("{type} must not go from {direction}")
_DEAD = _wrong("{type} after the link was over")
_UNREADABLE = _wrong("{type}")
_AGAIN = refuse("PROTOCOL_ERROR", "a second HELLO: the handshake is over")
_EARLY = refuse("PROTOCOL_VIOLATION", "a REQ came before POLICY")

_HOST_TO_CARTRIDGE = {
    # the host         silent       greeted      open         over
    _E.HELLO:         (_GREETS,     _AGAIN,      _AGAIN,      _DEAD),
    _E.REQ:           (_NOT_FIRST,  _EARLY,      TAKE,        _DEAD),
    _E.IDENTITY_REQ:  (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.CHUNK:         (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.END:           (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.LOG:           (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.ERR:           (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.HEARTBEAT:     (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.STREAM_START:  (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.STREAM_END:    (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.RELAY_NOTIFY:  (_NOT_FIRST,  _NEVER,      _NEVER,      _DEAD),
    _E.RELAY_STATE:   (_NOT_FIRST,  _NEVER,      _NEVER,      _DEAD),
    _E.CANCEL:        (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.CREDIT:        (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.CLOSE_STREAM:  (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.POLICY:        (_NOT_FIRST,  _OPENS,      TAKE,        _DEAD),
    _E.MALFORMED:     (_UNREADABLE, _UNREADABLE, _UNREADABLE, _DEAD),
}  # fmt: skip

_CARTRIDGE_TO_HOST = {
    # the cartridge    silent       greeted      open         over
    _E.HELLO:         (_GREETS,     _NEVER,      _NEVER,      _DEAD),
    _E.REQ:           (_NOT_FIRST,  COUNT,       TAKE,        _DEAD),
    _E.IDENTITY_REQ:  (_NOT_FIRST,  COUNT,       TAKE,        _DEAD),
    _E.CHUNK:         (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.END:           (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.LOG:           (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.ERR:           (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.HEARTBEAT:     (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.STREAM_START:  (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.STREAM_END:    (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.RELAY_NOTIFY:  (_NOT_FIRST,  _NEVER,      _NEVER,      _DEAD),
    _E.RELAY_STATE:   (_NOT_FIRST,  _NEVER,      _NEVER,      _DEAD),
    _E.CANCEL:        (_NOT_FIRST,  COUNT,       TAKE,        _DEAD),
    _E.CREDIT:        (_NOT_FIRST,  TAKE,        TAKE,        _DEAD),
    _E.CLOSE_STREAM:  (_NOT_FIRST,  COUNT,       TAKE,        _DEAD),
    _E.POLICY:        (_NOT_FIRST,  _NEVER,      _NEVER,      _DEAD),
    _E.PROVED:        (_NOT_FIRST,  _OPENS,      TAKE,        _DEAD),
    _E.MALFORMED:     (_UNREADABLE, _UNREADABLE, _UNREADABLE, _DEAD),
}  # fmt: skip

_EARLY_CALL = refuse("PROTOCOL_VIOLATION", "a call was made before its identity was proved")
_NOT_NOTIFY = _wrong("the first frame must be RELAY_NOTIFY, not {type}")

_SWITCH_TO_HOST = {
    # the switch       silent       open         over
    _E.HELLO:         (_NEVER,      _NEVER,      _DEAD),
    _E.REQ:           (_EARLY,      TAKE,        _DEAD),
    _E.IDENTITY_REQ:  (_EARLY,      TAKE,        _DEAD),
    _E.CHUNK:         (COUNT,       TAKE,        _DEAD),
    _E.END:           (COUNT,       TAKE,        _DEAD),
    _E.LOG:           (COUNT,       TAKE,        _DEAD),
    _E.ERR:           (COUNT,       TAKE,        _DEAD),
    _E.HEARTBEAT:     (COUNT,       COUNT,       _DEAD),
    _E.STREAM_START:  (COUNT,       TAKE,        _DEAD),
    _E.STREAM_END:    (COUNT,       TAKE,        _DEAD),
    _E.RELAY_NOTIFY:  (_NEVER,      _NEVER,      _DEAD),
    _E.RELAY_STATE:   (TAKE,        TAKE,        _DEAD),
    _E.CANCEL:        (COUNT,       TAKE,        _DEAD),
    _E.CREDIT:        (COUNT,       TAKE,        _DEAD),
    _E.CLOSE_STREAM:  (COUNT,       TAKE,        _DEAD),
    _E.POLICY:        (_OPENS,      TAKE,        _DEAD),
    _E.MALFORMED:     (_UNREADABLE, _UNREADABLE, _DEAD),
}  # fmt: skip

_HOST_TO_SWITCH = {
    # the host         silent       greeted      open         over
    _E.HELLO:         (_NOT_NOTIFY, _NEVER,      _NEVER,      _DEAD),
    _E.REQ:           (_NOT_NOTIFY, _EARLY_CALL, TAKE,        _DEAD),
    _E.IDENTITY_REQ:  (_NOT_NOTIFY, _EARLY_CALL, TAKE,        _DEAD),
    _E.CHUNK:         (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.END:           (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.LOG:           (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.ERR:           (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.HEARTBEAT:     (_NOT_NOTIFY, COUNT,       COUNT,       _DEAD),
    _E.STREAM_START:  (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.STREAM_END:    (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.RELAY_NOTIFY:  (_GREETS,     TAKE,        TAKE,        _DEAD),
    _E.RELAY_STATE:   (_NOT_NOTIFY, _NEVER,      _NEVER,      _DEAD),
    _E.CANCEL:        (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.CREDIT:        (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.CLOSE_STREAM:  (_NOT_NOTIFY, TAKE,        TAKE,        _DEAD),
    _E.POLICY:        (_NOT_NOTIFY, _NEVER,      _NEVER,      _DEAD),
    _E.PROVED:        (_NOT_NOTIFY, _OPENS,      TAKE,        _DEAD),
    _E.MALFORMED:     (_UNREADABLE, _UNREADABLE, _UNREADABLE, _DEAD),
}  # fmt: skip

_S = LinkState
LINK_LIFE: Mapping[Direction, Table[LinkState, LinkEvent]] = {
    Direction.HOST_TO_CARTRIDGE: by_state((_S.SILENT, _S.GREETED, _S.OPEN, _S.OVER), _HOST_TO_CARTRIDGE),
    Direction.CARTRIDGE_TO_HOST: by_state((_S.SILENT, _S.GREETED, _S.OPEN, _S.OVER), _CARTRIDGE_TO_HOST),
    Direction.SWITCH_TO_HOST: by_state((_S.SILENT, _S.OPEN, _S.OVER), _SWITCH_TO_HOST),
    Direction.HOST_TO_SWITCH: by_state((_S.SILENT, _S.GREETED, _S.OPEN, _S.OVER), _HOST_TO_SWITCH),
}


class LinkSide:
    """One sender of a link, as its receiver sees it."""

    __slots__ = ("_direction", "_life")

    def __init__(self, direction: Direction, state: LinkState = LinkState.SILENT) -> None:
        self._direction = direction
        self._life = Life(LINK_LIFE[direction], state)

    @property
    def state(self) -> LinkState:
        """Where the sender stands."""
        return self._life.state

    def take(self, view: FrameView) -> Cell[LinkState]:
        """Judge a frame. Raises RemoteProtocolError for one that ends the link."""
        asks_identity = view.type is FrameType.REQ and view.fields.get(10) == IDENTITY_CAP
        return self._move(LinkEvent.IDENTITY_REQ if asks_identity else _SENT[view.type], view.type.name)

    def _move(self, event: LinkEvent, shown: str) -> Cell[LinkState]:
        cell = self._life.take(event)
        if cell.verdict is Verdict.VIOLATE:
            raise RemoteProtocolError(cell.why.format(type=shown, direction=self._direction))
        return cell

    def malformed(self, why: str) -> NoReturn:
        """Note that what the sender sent cannot be read, for the reason given: raises RemoteProtocolError."""
        self._move(LinkEvent.MALFORMED, why)
        raise AssertionError(f"a {LinkEvent.MALFORMED} ends a link in every state")

    def prove(self) -> None:
        """Note that the sender has answered the identity check."""
        self._move(LinkEvent.PROVED, LinkEvent.PROVED)
