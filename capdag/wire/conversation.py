"""Everything two ends of a link say to each other, judged by the tables of `link_life`, `request_life`, `stream_life`.

What recorded traces, the fuzzer and whoever checks a cartridge from outside watch with. It sees each frame once, in an
order in which it could have crossed the wire, and holds what the two ends together would hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from capdag.errors import RemoteProtocolError

from .credit import REQUEST, RESPONSE
from .frame import FrameType, MessageId
from .handshake import read_cartridge_hello, read_hello
from .life import Life, Verdict
from .limits import DEFAULT_LIMITS, Limits, read_limits
from .link_life import IDENTITY_CAP, Direction, LinkSide, LinkState
from .meta import is_success
from .request_life import REQUEST_LIFE, RequestEvent, RequestState, Side
from .requests import FrameCounts, ReleasedRing, RequestTable, TableFullError
from .streams import InStreams
from .values import DEFAULT_MAX_ITEM
from .view import FrameView

_T = FrameType
_FLOWS = frozenset({_T.STREAM_START, _T.CHUNK, _T.STREAM_END, _T.END, _T.ERR})
_ASKERS = frozenset({Direction.HOST_TO_CARTRIDGE, Direction.SWITCH_TO_HOST})
"""Who asks the other side for its identity. The other way round it is a request like any other."""

_BY_REQUESTER = frozenset({_T.REQ, _T.CANCEL, _T.CLOSE_STREAM})


class LinkKind(Enum):
    """The two kinds of link, by who speaks first and who answers."""

    PIPE = (Direction.HOST_TO_CARTRIDGE, Direction.CARTRIDGE_TO_HOST)
    RELAY = (Direction.SWITCH_TO_HOST, Direction.HOST_TO_SWITCH)


class _Request:
    """One live request: its life, and the streams of its body and of its answer."""

    __slots__ = ("asks_identity", "life", "streams", "xid")

    def __init__(self, view: FrameView, initial_credit: int, max_item: int) -> None:
        self.xid = view.xid
        self.asks_identity = view.fields.get(10) == IDENTITY_CAP
        self.life: Life[RequestState, RequestEvent] = Life(REQUEST_LIFE, RequestState.NONE)
        self.streams = {side: InStreams(initial_credit, max_item=max_item) for side in Side}

    def fits(self, view: FrameView) -> bool:
        """True if the XID of a frame is this request's. The first one that comes binds it."""
        if view.xid is not None and self.xid is None:
            self.xid = view.xid
        return view.xid is None or view.xid == self.xid


class _Place(NamedTuple):
    """Which request a frame is for, and from which of its ends it comes."""

    key: tuple[Direction, MessageId]
    request: _Request
    side: Side


class Conversation:
    """`take` is given every frame. Memory: `table_limit` requests of at most 64 streams a direction, in each of which
    an unfinished item of `max_item` bytes may wait.

    `state` is where both senders stand at the start, for a conversation that is joined in the middle. `counts` holds
    what went nowhere.
    """

    def __init__(
        self, kind: LinkKind, *, limits: Limits = DEFAULT_LIMITS, state: LinkState = LinkState.SILENT,
        table_limit: int = 1024, max_item: int = DEFAULT_MAX_ITEM,
    ) -> None:  # fmt: skip
        first, second = kind.value
        self._sides: Mapping[Direction, LinkSide] = {one: LinkSide(one, state) for one in kind.value}
        self._other = {first: second, second: first}
        self._max_item = max_item
        self._rows: RequestTable[tuple[Direction, MessageId], _Request] = RequestTable(table_limit)
        self._released = ReleasedRing()
        self.limits = limits
        self.counts = FrameCounts(self._released)

    def __len__(self) -> int:
        """Return how many requests are live."""
        return len(self._rows)

    def state(self, direction: Direction) -> LinkState:
        """Return where the sender of a direction stands."""
        return self._sides[direction].state

    def take(self, direction: Direction, view: FrameView) -> Verdict:
        """Judge a frame sent in `direction`.

        Raises RemoteProtocolError where a rule was broken: the link is over then (`state` says so), or the frame's
        request, of which nothing is kept.
        """
        side = self._sides[direction]
        greets = side.state is LinkState.SILENT
        verdict = side.take(view).verdict
        if verdict is not Verdict.TAKE:
            return self._lost(view) if verdict is Verdict.COUNT else verdict
        if greets:
            self._greet(direction, view)
        if view.type is FrameType.REQ:
            return self._begin(direction, view)
        if REQUEST_LIFE[RequestState.NONE][Side.REQUESTER, view.type].verdict is Verdict.ELSEWHERE:
            return verdict
        place = self._place(direction, view)
        return self._lost(view) if place is None else self._move(place, view)

    def _greet(self, direction: Direction, view: FrameView) -> None:
        """Take the limits that come with a sender's first frame."""
        try:
            if view.type is FrameType.RELAY_NOTIFY:
                theirs = read_limits(view.meta, optional=True)
            elif direction is Direction.CARTRIDGE_TO_HOST:
                theirs = read_cartridge_hello(view).limits
            elif direction is Direction.HOST_TO_CARTRIDGE:
                theirs = read_hello(view)
            else:
                return
        except RemoteProtocolError as error:
            self._sides[direction].malformed(str(error))
        self.limits = self.limits.negotiate(theirs)

    def _begin(self, direction: Direction, view: FrameView) -> Verdict:
        key = (direction, view.id)
        if (known := self._rows.find(key)) is not None:
            return known.life.take((Side.REQUESTER, FrameType.REQ)).verdict
        request = _Request(view, self.limits.initial_credit, self._max_item)
        try:
            self._rows.register(key, request)
        except TableFullError:
            return Verdict.REFUSE
        self._released.discard(view.id)
        return request.life.take((Side.REQUESTER, FrameType.REQ)).verdict

    def _place(self, direction: Direction, view: FrameView) -> _Place | None:
        own = self._find(direction, view)
        theirs = self._find(self._other[direction], view)
        if view.type is FrameType.CREDIT:
            credited = view.meta.get("credit_dir")
            own, theirs = own if credited == RESPONSE else None, theirs if credited == REQUEST else None
        elif view.type in _BY_REQUESTER:
            theirs = None
        elif view.type not in _FLOWS:
            own = None
        elif own is not None and theirs is not None and own.life.state is not RequestState.BODY:
            own = None  # a call served where it was made: its caller has said everything
        if own is not None:
            return _Place((direction, view.id), own, Side.REQUESTER)
        return None if theirs is None else _Place((self._other[direction], view.id), theirs, Side.HANDLER)

    def _find(self, requester: Direction, view: FrameView) -> _Request | None:
        row = self._rows.find((requester, view.id))
        return row if row is not None and row.fits(view) else None

    def _lost(self, view: FrameView) -> Verdict:
        self.counts.unroutable(view)
        return Verdict.COUNT

    def _move(self, place: _Place, view: FrameView) -> Verdict:
        request = place.request
        verdict = request.life.take((place.side, view.type)).verdict
        try:
            if verdict is Verdict.TAKE:
                self._stream(place, view)
        except RemoteProtocolError:
            self._release(place)
            raise
        if verdict is Verdict.COUNT:
            return self._lost(view)
        if request.life.state is RequestState.NONE:
            if request.asks_identity and is_success(view.meta) and place.key[0] in _ASKERS:
                self._sides[self._other[place.key[0]]].prove()
            self._release(place)
        return verdict

    def _release(self, place: _Place) -> None:
        self._rows.take(place.key)
        self._released.add(place.key[1])

    @staticmethod
    def _stream(place: _Place, view: FrameView) -> None:
        """Move the streams of a request by one of its frames."""
        streams = place.request.streams[place.side]
        if view.type is FrameType.STREAM_START:
            streams.start(view)
        elif view.type is FrameType.CHUNK:
            streams.of(view).chunk(view)
        elif view.type is FrameType.STREAM_END:
            streams.of(view).end(view)
        elif view.type is FrameType.END and (place.side is Side.REQUESTER or is_success(view.meta)):
            streams.check_ended()
        elif view.type is FrameType.CREDIT:
            sender = Side.HANDLER if place.side is Side.REQUESTER else Side.REQUESTER
            place.request.streams[sender].note_grant(view.stream_id, view.fields[19])
