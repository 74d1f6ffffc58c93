"""Where each frame goes (protocol-spec/wire.md, Routing)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from capdag.errors import RemoteProtocolError, RequestFailedError
from capdag.urn import CapUrn, UrnError
from capdag.wire import (
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    XID_HEADROOM,
    Failure,
    FrameType,
    FrameView,
    Limits,
    TableFullError,
    err_frame,
    read_cancel,
    show_id,
    view_of,
    with_routing_id,
)

from ._attaching import Attaching
from ._endings import Endings, failure
from ._flow import Flow, Sink
from ._masters import Master, Masters, MasterState
from ._outgoing import Outgoing
from ._rows import Row, Rows

log = logging.getLogger(__name__)


class Router:
    """Routes frames of masters and of callers. Every method changes state first and puts frames after."""

    def __init__(
        self, masters: Masters, rows: Rows, endings: Endings, attaching: Attaching, out: Outgoing, own: Limits,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._masters = masters
        self._rows = rows
        self._endings = endings
        self._attaching = attaching
        self._out = out
        self._own_window = own.initial_credit
        self._clock = clock

    def take(self, master: Master, batch: Sequence[FrameView]) -> None:
        """Route the frames of one read. A host that breaks the rules of its link loses it."""
        for view in batch:
            if master.state is MasterState.DEAD:
                return
            try:
                self._take(master, view)
            except RemoteProtocolError as error:
                self._attaching.end(master, str(error))

    def _take(self, master: Master, view: FrameView) -> None:
        if master.state is MasterState.WAITING and view.type is not FrameType.RELAY_NOTIFY:
            raise RemoteProtocolError(f"the first frame of a host must be RELAY_NOTIFY, not {view.type.name}")
        if master.check_rid is not None and view.id == master.check_rid:
            self._attaching.check(master, view)
        else:
            FROM_MASTER[view.type](self, master, view)

    # From masters

    def _notify(self, master: Master, view: FrameView) -> None:
        self._attaching.notify(master, view)

    def _refuse(self, _master: Master, view: FrameView) -> None:
        raise RemoteProtocolError(f"{view.type.name} must not come from a host")

    def _ignore(self, _master: Master, view: FrameView) -> None:
        self._lose(view)

    def _lose(self, view: FrameView, reason: str | None = None) -> None:
        """Count a frame that goes nowhere: a straggler if its request ended lately, else a drop."""
        line = self._rows.counts.drop(view, reason) if reason else self._rows.counts.unroutable(view)
        if line is not None:
            log.debug("%s", line)

    def _peer_request(self, master: Master, view: FrameView) -> None:
        """A cartridge's own call: a REQ from a master, which becomes the origin of its row."""
        twin = self._rows.find(view.id)
        if twin is not None and twin.answer.sink is master:
            # One caller, one id, two requests: whatever comes for it could be of either.
            self._endings.fail(twin, _twice(view))
            self._lose(view)
            return
        try:
            if twin is not None:
                raise _twice(view).error()
            self._dispatch_call(master, view)
        except RequestFailedError as error:
            why = Failure(error.code, error.attribution, error.message, error.detail)
            self._out.put(master, view_of(err_frame(view.id, why)))

    def _dispatch_call(self, master: Master, view: FrameView) -> None:
        if master.state is not MasterState.READY:
            raise failure(
                "PROTOCOL_VIOLATION", f"host {master.name} made a call before its identity was proved"
            ).error()
        parent_rid = view.meta.get("parent_rid")
        parent = self._rows.find(parent_rid) if isinstance(parent_rid, (bytes, int)) else None
        if parent is not None and parent.body.sink is master:
            if parent.cancel is not None:
                raise parent.cancel.failure().error()
        else:
            parent = None
        row = self.dispatch(view, master, window=master.limits.initial_credit, is_peer=True)
        if parent is not None:
            self._rows.link(row, parent)

    def dispatch(
        self, req: FrameView, origin: Sink, *, window: int | None = None, preferred: str | None = None,
        is_peer: bool = False,
    ) -> Row:  # fmt: skip
        """Find the master for a REQ, enter its row and send it on. `window` is the origin's, if not the master's.

        Raises RequestFailedError: INVALID_REQUEST, NO_HANDLER, TABLE_FULL or PROTOCOL_VIOLATION.
        """
        cap = req.fields.get(10, "")
        master = self._choose(cap, preferred)
        theirs = master.limits.initial_credit
        ours = theirs if window is None else window
        # A host's notice says the least of its cartridges' windows: what a sender was offered may be as much as ours.
        body = Flow(master, theirs, max(ours, self._own_window))
        answer = Flow(origin, ours, max(theirs, self._own_window))
        row = Row(req.id, self._rows.next_xid(), cap, body, answer, is_peer=is_peer)
        routed = with_routing_id(req, row.xid)
        too_long = _too_long(routed, master)
        if too_long is not None:
            raise too_long.error()
        try:
            self._rows.register(row, self._clock())
        except TableFullError as error:
            raise failure("TABLE_FULL", str(error)).error() from None
        body.admit(routed)
        self._out.put(master, routed)
        return row

    def _choose(self, cap: str, preferred: str | None) -> Master:
        try:
            wanted = CapUrn.parse(cap)
        except UrnError as error:
            raise failure("INVALID_REQUEST", f"the request's cap is no cap URN: {error}").error() from None
        master = self._masters.best(wanted, preferred)
        if master is None:
            raise failure(
                "NO_HANDLER", f"no attached host serves {wanted}: see which caps are served, or attach one"
            ).error()
        return master

    def _continuation(self, master: Master, view: FrameView) -> None:
        row = self._rows.find(view.id, view.xid)
        if row is None:
            self._lose(view)
        elif row.body.sink is master and (row.answer.sink is not master or _is_answer(row, view)):
            self._to_requester(row, view)
        elif row.answer.sink is master:
            self.to_handler(row, view)
        else:
            self._lose(view)

    def _credit(self, master: Master, view: FrameView) -> None:
        row, direction = self._rows.find(view.id, view.xid), view.meta.get("credit_dir")
        if row is not None and direction == REQUEST and row.body.sink is master:
            self._grant(row, row.body, row.answer.sink, view)
        elif row is not None and direction == RESPONSE and row.answer.sink is master:
            self.credit_answer(row, view)
        else:
            self._lose(view)

    def _control(self, master: Master, view: FrameView) -> None:
        """CANCEL and CLOSE_STREAM go from a requester to its handler."""
        row = self._rows.find(view.id, view.xid)
        if row is None or row.answer.sink is not master:
            self._lose(view)
        elif view.type is FrameType.CANCEL:
            self._endings.cancel(row, read_cancel(view.meta), force_kill=view.fields.get(18) is True)
        else:
            self.close_stream(row, view)

    # Along a row

    def to_handler(self, row: Row, view: FrameView) -> None:
        """A frame of a request's body."""
        body = row.body
        if row.cancel is not None:
            self._lose(view, "cancelled")
        elif body.ended:
            self._lose(view)
        elif self._admit(row, body, view):
            self._out.put(body.sink, _routed(view, row))

    def _to_requester(self, row: Row, view: FrameView) -> None:
        answer = row.answer
        if row.cancel is not None:
            self._drain(row, view)
        elif answer.ended:
            self._lose(view)
        elif self._admit(row, answer, view):
            self._deliver(row, view)

    def _admit(self, row: Row, flow: Flow, view: FrameView) -> bool:
        """Check and count a frame; False if it waits for credit or has ended the request."""
        row.last = self._clock()
        why = _too_long(view, flow.sink)
        try:
            free = why is None and flow.admit(view)
        except RemoteProtocolError as error:
            why = failure(error.code, str(error))
        if why is not None:
            self._endings.fail(row, why)
            return False
        return free

    def _deliver(self, row: Row, view: FrameView) -> None:
        view = _routed(view, row)
        if view.type in TERMINAL_TYPES:
            self._endings.finish(row, view)
        else:
            self._out.put(row.answer.sink, view)

    def _drain(self, row: Row, view: FrameView) -> None:
        """The handler of a cancelled request may write on until its terminal: count and grant, deliver nothing."""
        if view.type in TERMINAL_TYPES:
            self._deliver(row, view)
            return
        self._lose(view, "cancelled")
        row.answer.swallow(view)
        self._endings.refill(row, least=max(1, row.answer.window // 2))

    def _grant(self, row: Row, flow: Flow, sender: Sink, view: FrameView) -> None:
        free = flow.grant(view)
        self._out.put(sender, _routed(view, row))
        for held in free:
            if flow is row.answer:
                self._deliver(row, held)
            else:
                self._out.put(flow.sink, _routed(held, row))

    def credit_answer(self, row: Row, view: FrameView) -> None:
        """A requester's grant for its handler. Once cancelled, the switch grants and nobody else."""
        if row.cancel is None:
            self._grant(row, row.answer, row.body.sink, view)
        else:
            self._lose(view, "cancelled")

    def close_stream(self, row: Row, view: FrameView) -> None:
        """A requester wants no more of a live feed."""
        self._out.put(row.body.sink, _routed(view, row))


def _routed(view: FrameView, row: Row) -> FrameView:
    """Return the frame with its XID. Hosts leave it out where the RID says enough."""
    return view if view.xid is not None else with_routing_id(view, row.xid)


def _is_answer(row: Row, view: FrameView) -> bool:
    """Tell the two directions of a call that a host makes to itself apart: only the handler's frames have the XID.

    The public host leaves it out of an ERR of its own making; once the body has ended it can be nothing else.
    """
    return view.xid is not None or (view.type is FrameType.ERR and row.body.ended)


def _too_long(view: FrameView, sink: Sink) -> Failure | None:
    size = len(view.body) + (XID_HEADROOM if view.xid is None else 0)
    if size <= sink.max_frame:
        return None
    return failure(
        "PROTOCOL_VIOLATION",
        f"{view.type.name} of {size} bytes is over the receiving link's max_frame of {sink.max_frame}",
    )


def _twice(view: FrameView) -> Failure:
    return failure("PROTOCOL_VIOLATION", f"request id {show_id(view.id)} is live: use a new id for each call")


_T = FrameType

FROM_MASTER: Mapping[FrameType, Callable[[Router, Master, FrameView], None]] = {
    _T.HELLO: Router._refuse,
    _T.REQ: Router._peer_request,
    _T.CHUNK: Router._continuation,
    _T.END: Router._continuation,
    _T.LOG: Router._continuation,
    _T.ERR: Router._continuation,
    _T.HEARTBEAT: Router._ignore,
    _T.STREAM_START: Router._continuation,
    _T.STREAM_END: Router._continuation,
    _T.RELAY_NOTIFY: Router._notify,
    _T.RELAY_STATE: Router._refuse,
    _T.CANCEL: Router._control,
    _T.CREDIT: Router._credit,
    _T.CLOSE_STREAM: Router._control,
    _T.POLICY: Router._refuse,
}
"""What a frame of a host means, by its type. Total: no type is forgotten."""
