"""Where each frame of a host goes, and which host takes a request (protocol-spec/wire.md, Routing)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from capdag.errors import RemoteProtocolError, RequestFailedError
from capdag.urn import CapUrn, UrnError
from capdag.wire import (
    REQUEST,
    Failure,
    FrameType,
    FrameView,
    Limits,
    TableFullError,
    err_frame,
    show_id,
    view_of,
    with_routing_id,
)
from capdag.wire.life import Verdict
from capdag.wire.request_life import RequestState, Side

from ._attaching import Attaching
from ._endings import Endings, failure
from ._flow import Flow, Sink
from ._masters import Master, Masters
from ._outgoing import Outgoing
from ._passage import Passage, too_long
from ._places import Line, Slot
from ._rows import Row, Rows


class Router:
    """Routes what comes from masters, and finds masters for requests. State changes first; frames go out after."""

    def __init__(
        self, masters: Masters, rows: Rows, endings: Endings, attaching: Attaching, passage: Passage, out: Outgoing,
        own: Limits, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._masters = masters
        self._rows = rows
        self._endings = endings
        self._attaching = attaching
        self._passage = passage
        self._out = out
        self._own_window = own.initial_credit
        self._clock = clock

    def take(self, master: Master, batch: Sequence[FrameView]) -> None:
        """Route the frames of one read. A host that breaks the rules of its link loses it."""
        for view in batch:
            if master.ended:
                return
            try:
                self._take(master, view)
            except RemoteProtocolError as error:
                self._attaching.end(master, str(error))

    def _take(self, master: Master, view: FrameView) -> None:
        cell = master.side.take(view)
        if cell.verdict is Verdict.TAKE:
            if view.id == master.check_rid:
                self._attaching.check(master, view)
            else:
                FROM_MASTER[view.type](self, master, view)
        elif cell.verdict is Verdict.REFUSE:
            self._answer(master, view, failure("PROTOCOL_VIOLATION", f"host {master.name}: {cell.why}"))
        else:
            self._passage.lose(view, master, why=cell.why)

    def _answer(self, master: Master, req: FrameView, why: Failure) -> None:
        """Refuse a host's REQ. No XID was given for it."""
        self._out.put(master, view_of(err_frame(req.id, why)))

    def _notify(self, master: Master, view: FrameView) -> None:
        self._attaching.notify(master, view)

    def _continuation(self, master: Master, view: FrameView) -> None:
        row = self._rows.find(view.id, view.xid)
        side = None if row is None else _side(row, master, view)
        if row is None or side is None:
            self._passage.lose(view, master)
        else:
            self._passage.take(row, side, view)

    def _peer_request(self, master: Master, view: FrameView) -> None:
        """A cartridge's own call: a REQ from a master, which becomes the origin of its row."""
        twin = self._rows.find(view.id)
        twice = failure("PROTOCOL_VIOLATION", f"request id {show_id(view.id)} is live: use a new id for each call")
        if twin is not None and twin.answer.sink is master:
            # One caller, one id, two requests: whatever comes for it could be of either.
            self._endings.fail(twin, twice)
            self._passage.lose(view, master, "protocol_violation", twice.message)
            return
        try:
            if twin is not None:
                raise twice.error()
            self._dispatch_call(master, view)
        except RequestFailedError as error:
            self._answer(master, view, Failure(error.code, error.attribution, error.message, error.detail))

    def _dispatch_call(self, master: Master, view: FrameView) -> None:
        parent_rid = view.meta.get("parent_rid")
        parent = self._rows.find(parent_rid) if isinstance(parent_rid, (bytes, int)) else None
        if parent is not None and parent.body.sink is not master:
            parent = None
        if parent is not None and parent.cancel is not None:
            raise parent.cancel.failure().error()
        line = self.choose(wanted_cap(view.fields.get(10)))
        # A call waits for no slot: whoever makes it holds one, which the other might be waiting for.
        found = line.room()
        handler = next(iter(line.places)) if found is None else found[0]
        row = self.enter(view, self._rows.next_xid(), master, handler, window=master.limits.initial_credit)
        if parent is not None:
            self._rows.link(row, parent)

    def choose(self, cap: CapUrn, preferred: str | None = None, *, may_wait: bool = False) -> Line[Master]:
        """Return the line of the offered cap that serves `cap` best. Raises RequestFailedError: NO_HANDLER.

        With `may_wait` it may be the line of one that nobody serves while its host is away.
        """
        line = self._masters.best(cap, preferred)
        if line is None and may_wait:
            line = self._masters.best_away(cap, preferred)
        if line is None:
            message = f"no attached host serves {cap}: see which caps are served, or attach a host that does"
            raise failure("NO_HANDLER", message).error()
        return line

    def enter(
        self, req: FrameView, xid: int, origin: Sink, master: Master, *, slot: Slot[Master] | None = None,
        window: int | None = None,
    ) -> Row:  # fmt: skip
        """Enter a request's row and send its REQ to a master. `window` is the origin's, if not the master's.

        Raises RequestFailedError: TABLE_FULL or PROTOCOL_VIOLATION.
        """
        theirs = master.limits.initial_credit
        ours = theirs if window is None else window
        # A host's notice says the least of its cartridges' windows: what a sender was offered may be as much as ours.
        body = Flow(master, theirs, max(ours, self._own_window))
        answer = Flow(origin, ours, max(theirs, self._own_window))
        row = Row(req.id, xid, req.fields.get(10, ""), body, answer, slot)
        routed = with_routing_id(req, xid)
        why = too_long(routed, master)
        if why is not None:
            raise why.error()
        try:
            self._rows.register(row, self._clock())
        except TableFullError as error:
            raise failure(error.code, str(error)).error() from None
        body.admit(routed)
        self._out.put(master, routed)
        return row


def wanted_cap(text: str | None) -> CapUrn:
    """Return the cap that a request asks for. Raises RequestFailedError: INVALID_REQUEST."""
    if text is None:
        raise failure("INVALID_REQUEST", "a REQ must name a cap URN in key 10 (cap): it has no such key").error()
    try:
        return CapUrn.parse(text)
    except UrnError as error:
        raise failure("INVALID_REQUEST", f"the request's cap is no cap URN: {error}").error() from None


def _side(row: Row, master: Master, view: FrameView) -> Side | None:
    """Return which end of a request a master's frame comes from, None if the master has no part in it."""
    serves, asks = row.body.sink is master, row.answer.sink is master
    if serves and asks:
        return Side.HANDLER if _is_handlers(row, view) else Side.REQUESTER
    return Side.HANDLER if serves else Side.REQUESTER if asks else None


def _is_handlers(row: Row, view: FrameView) -> bool:
    """Tell the two ends of a call that a host makes to itself apart: a handler's flow frames have the XID.

    The public host leaves it out of an ERR of its own making; once the body has ended it can be nothing else.
    """
    if view.type is FrameType.CREDIT:
        return view.meta.get("credit_dir") == REQUEST
    if view.type in (FrameType.CANCEL, FrameType.CLOSE_STREAM):
        return False
    return view.xid is not None or (view.type is FrameType.ERR and row.state is not RequestState.BODY)


_T = FrameType

FROM_MASTER: Mapping[FrameType, Callable[[Router, Master, FrameView], None]] = {
    _T.REQ: Router._peer_request,
    _T.RELAY_NOTIFY: Router._notify,
    **dict.fromkeys(
        (_T.STREAM_START, _T.CHUNK, _T.STREAM_END, _T.LOG, _T.END, _T.ERR, _T.CREDIT, _T.CANCEL, _T.CLOSE_STREAM),
        Router._continuation,
    ),
}
"""Every type that the life of a link takes from a host."""
