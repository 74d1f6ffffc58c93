"""Judges everything a cartridge sends, by the tables of the wire (protocol-spec/states.md). No I/O.

A rule that a frame breaks is a `Breach`, which names the case that is about that rule: whichever case is being tried
when it happens, the report tells it once, at the right place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    FLOW_TYPES,
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    XID_HEADROOM,
    Frame,
    FrameType,
    FrameView,
    Limits,
    MessageId,
    SeqAssigner,
    credit_frame,
    show_id,
)
from capdag.wire.heartbeats import is_reply
from capdag.wire.life import Verdict
from capdag.wire.link_life import Direction, LinkSide, LinkState

from ._callee import Callee
from ._case import Breach
from ._exchange import Exchange, show


class Watch:
    """One link's cartridge side. `take` is given every frame that comes; `send` is how answers go; `tally` counts
    what comes, by type, over all sessions."""

    def __init__(
        self, send: Callable[[Frame], None], report: Callable[[Breach], None], tally: Counter[FrameType]
    ) -> None:
        self.limits: Limits = DEFAULT_LIMITS
        self.frames = 0
        self.hello: FrameView | None = None
        self.over: Breach | None = None
        self.policy_sent = False
        self.calls: dict[MessageId, Callee | None] = {}
        """The cartridge's own requests; None for one that is not answered."""
        self.called_for: dict[MessageId, str] = {}
        """The last cap that was called, by the RID of the request that it was called for."""
        self.replies: dict[MessageId, FrameView | None] = {}
        """By the id of what was asked: a heartbeat, a second HELLO."""
        self.strays: set[MessageId] = set()
        """RIDs of requests that were never made, under which a case has sent something."""
        self.exchanges: dict[tuple[MessageId, MessageId | None], Exchange] = {}
        self._side = LinkSide(Direction.CARTRIDGE_TO_HOST)
        self._answered: set[MessageId] = set()
        self._numbers = SeqAssigner()
        self._numbered = True
        self._send = send
        self._report = report
        self._tally = tally

    def prove(self) -> None:
        """Note that the identity check is over: calls may come."""
        self._side.prove()

    def note(self, case: str, seen: str) -> Breach:
        """Report a broken rule."""
        breach = Breach(case, seen)
        self._report(breach)
        return breach

    def take(self, view: FrameView) -> None:
        """Judge a frame and note what it says."""
        self.frames += 1
        self._tally[view.type] += 1
        greets = self._side.state is LinkState.SILENT
        try:
            verdict = self._side.take(view).verdict
        except RemoteProtocolError as error:
            if self.over is None:
                self.over = self.note("hello" if greets else "forbidden-frames", f"{error} ({show(view)})")
            return
        if view.type is FrameType.HELLO:
            self.hello = view
        elif view.id in self.replies and view.type in (FrameType.HEARTBEAT, FrameType.ERR):
            self._reply(view)
        elif view.type is FrameType.HEARTBEAT:
            self._probe(view)
        elif view.type is FrameType.REQ:
            self._call(view, early=verdict is Verdict.COUNT or not self.policy_sent)
        elif view.id in self.calls:
            self._serve(view)
        elif view.type is FrameType.CREDIT:
            self._credit(view)
        elif view.type in FLOW_TYPES:
            self._flow(view)

    def _reply(self, view: FrameView) -> None:
        if self.replies[view.id] is not None:
            self.note("heartbeat-once", f"a second reply under the id {show_id(view.id)}: {show(view)}")
        self.replies[view.id] = view

    def _probe(self, view: FrameView) -> None:
        """Answer a probe of the cartridge's own, but never what may be its answer to the answer: that had no end."""
        if view.id in self._answered:
            self.note("heartbeat-once", f"probe {show_id(view.id)} had its reply, and then came {show(view)}")
        elif not is_reply(view):
            self._answered.add(view.id)
            self._send(Frame(FrameType.HEARTBEAT, view.id))

    def _call(self, view: FrameView, *, early: bool) -> None:
        self.calls[view.id] = None
        if early:
            self.note("early-call", f"a call before POLICY: {show(view)}")
            return
        if view.xid is not None or view.meta.get("parent_rid") is None:
            self.note("calls", f"a call with XID {view.xid!r} and parent_rid {view.meta.get('parent_rid')!r}")
        callee = self.calls[view.id] = Callee(view, self.limits, self._send)
        if (parent := view.meta.get("parent_rid")) is not None:
            self.called_for[parent] = callee.cap

    def _serve(self, view: FrameView) -> None:
        callee = self.calls[view.id]
        try:
            if callee is not None:
                callee.take(view)
        except RemoteProtocolError as error:
            self.note("calls", f"in a call of {callee and callee.cap}: {error}")

    def _of(self, view: FrameView) -> Exchange | None:
        """Return the exchange that a frame belongs to, having judged the ids it goes by."""
        known = self.exchanges.get((view.id, view.xid))
        if view.id in self.strays:
            self.note("strays", f"{show(view)} came for a request that was never made")
        elif known is None:
            same = [exchange for (rid, _), exchange in self.exchanges.items() if rid == view.id]
            if not any(exchange.fault for exchange in same):
                xids = " or ".join(show_id(exchange.xid) for exchange in same)
                wanted = f"XID {xids} was due" if same else "there is no such request"
                seen = f"{show(view)} under RID {show_id(view.id)}, XID {show_id(view.xid)}: {wanted}"
                breach = self.note("ids", seen)
                for exchange in same:
                    exchange.fault = exchange.fault or breach
        return known

    def _flow(self, view: FrameView) -> None:
        exchange = self._of(view)
        if exchange is None or exchange.fault:
            return
        if not self._number(view, exchange):
            return
        room = self.limits.max_frame - (XID_HEADROOM if view.xid is None else 0)
        if len(view.body) > room:
            exchange.fault = Breach("frame-size", f"{show(view)} is a frame of {len(view.body)} bytes; {room} fit")
        grant = exchange.take(view)
        if exchange.fault:
            self._report(exchange.fault)
        elif grant and view.stream_id is not None:
            self._send(credit_frame(view.id, view.stream_id, grant, RESPONSE, xid=view.xid))

    def _number(self, view: FrameView, exchange: Exchange) -> bool:
        """Hold a frame to the number that the wire's own counter gives it. False for one after its terminal."""
        due = Frame.of(view.fields)
        if not self._numbers.assign(due):
            case = "one-terminal" if view.type in TERMINAL_TYPES else "after-terminal"
            exchange.fault = self.note(case, f"after {show(exchange.terminal)} came {show(view)}")
            return False
        if due.seq != view.seq and self._numbered:
            self._numbered = False  # one gap makes every later number wrong
            self.note("seq", f"{show(view)} has seq {view.seq} where {due.seq} was due")
        return True

    def _credit(self, view: FrameView) -> None:
        exchange = self.exchanges.get((view.id, view.xid)) or self.exchanges.get((view.id, None))
        if exchange is None:
            self._of(view)
            return
        window = exchange.windows.get(view.stream_id or "")
        credit: int = view.fields[19]
        if (view.meta.get("credit_dir") != REQUEST or window is None) and exchange.live:
            self.note("credit-form", f"a grant that fits no argument: {show(view)}")
            window = window or next(iter(exchange.windows.values()), None)
        if window is None:
            return
        if window.remaining + credit > window.initial:
            self.note("credit-excess", f"{show(view)} grants more CHUNKs than were sent")
        window.grant(credit)
