"""The rows of the host's tables: a request a cartridge serves, and a call a cartridge made (protocol-spec/host.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from capdag.wire import CancelReason, FrameView, Limits, MessageId

from .flows import Edge, Flow, Hold

if TYPE_CHECKING:
    from .cartridge import Cartridge

RowKey = tuple[MessageId | None, MessageId]
"""(XID, RID)."""


class Cancellation(NamedTuple):
    """Why a request is to end, and since when (seconds of the host's clock)."""

    reason: CancelReason
    since: float


class IncomingRow:
    """A request that came from the relay and that `cartridge` serves.

    `body` goes to the cartridge, `answer` to the relay. `caller` is set if the request was made by a cartridge of
    this same host. `queued`: the process has not been given the REQ; `kept` counts
    the uncredited bytes that wait for it. `cancellation`: frames are discarded until the
    handler's terminal. `settled`: the requester has its terminal, the handler has yet to end. `discarded`: part of
    the answer was thrown away. `passed`: the handler's terminal has gone to the relay, and the row only waits for it
    to come back to the caller.
    """

    __slots__ = (
        "answer", "body", "caller", "calls", "cancellation", "cartridge", "discarded", "kept", "passed", "queued",
        "rid", "settled", "xid",
    )  # fmt: skip

    def __init__(self, xid: MessageId | None, rid: MessageId, cartridge: Cartridge, caller: OutgoingRow | None) -> None:
        self.xid = xid
        self.rid = rid
        self.cartridge = cartridge
        self.caller = caller
        self.calls: dict[MessageId, OutgoingRow] = {}
        # Who asked pays for both directions; of a requester elsewhere nothing is known.
        self.body = Flow(caller.cartridge if caller is not None else None)
        self.answer = Flow(caller.cartridge if caller is not None else cartridge)
        self.queued = True
        self.kept = 0
        self.cancellation: Cancellation | None = None
        self.settled = False
        self.passed = False
        self.discarded = False

    @property
    def key(self) -> RowKey:
        """The key of the incoming table."""
        return (self.xid, self.rid)

    def bind(self, process: Limits, relay: Limits, max_streams: int) -> None:
        """Take the windows of both links, which are known once the process is ready."""
        self.queued = False
        self.body.hold = Hold(process.initial_credit)
        _bind_upward(self.answer, process, relay, max_streams)


class OutgoingRow:
    """A call that `cartridge` made, for the request `parent` if it said so.

    `body` goes to the relay, `answer` to the cartridge. `xid` is known once a frame came back. `served` is the row of
    the same request where it is served on this host too; `body_terminal` is then recognised when it comes back.
    `cancellation`: nothing but the terminal reaches the caller.
    """

    __slots__ = ("answer", "body", "body_terminal", "cancellation", "cartridge", "parent", "rid", "served", "xid")

    def __init__(self, rid: MessageId, cartridge: Cartridge, parent: IncomingRow | None, relay: Limits) -> None:
        self.rid = rid
        self.xid: MessageId | None = None
        self.cartridge = cartridge
        self.parent = parent
        self.served: IncomingRow | None = None
        self.body_terminal: FrameView | None = None
        self.cancellation: Cancellation | None = None
        self.body = Flow(cartridge)
        self.answer = Flow(cartridge)
        _bind_upward(self.body, cartridge.limits, relay, cartridge.max_streams)
        self.answer.hold = Hold(cartridge.limits.initial_credit)

    @property
    def cancelled(self) -> bool:
        """True once a CANCEL has gone out for it."""
        return self.cancellation is not None


def _bind_upward(flow: Flow, process: Limits, relay: Limits, max_streams: int) -> None:
    flow.edge = Edge(process, max_streams)
    if relay.initial_credit < process.initial_credit:
        flow.hold = Hold(relay.initial_credit)
