"""What every routing decision of the host reads and changes (protocol-spec/host.md, Routing).

No I/O and no trio: time comes from a clock passed in, frames leave through lists that the owner sends on at the end of
each turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from capdag.urn import CapTable
from capdag.wire import (
    DEFAULT_LIMITS,
    XID_HEADROOM,
    CancelReason,
    DropReason,
    Failure,
    Frame,
    FrameCounts,
    FrameView,
    MessageId,
    NetworkPolicy,
    ReleasedRing,
    RequestTable,
    cancel_frame,
    err_frame,
    view_of,
)
from capdag.wire.blocks import Parcel

from .cartridge import Cartridge
from .debt import Backlog, Debt
from .rows import IncomingRow, OutgoingRow, RowKey
from .settings import HostSettings
from .told import Told

log = logging.getLogger("capdag.host")

_KEPT = 1_000
"""Characters that stay of a text of an ERR or CANCEL that does not fit its link."""


class Exchange:
    """The tables, the counts, the policy, and the frames that one turn has produced.

    `closing` is None while requests are accepted, else what new ones are refused with. `limits` is what the relay has
    been told and only ever shrinks: a requester that has read smaller limits never meets larger ones. `up_max_frame` is
    what a frame to the relay may come to. `backlog` is that
    of the relay's link, whose queue `up_queued` measures. `up` and `touched` are what a turn has for the relay, and the
    cartridges that it has something for. `alone_since` is when the last relay went, None while one is attached.
    `host_id` is this host's alone, for as long as it lives. `given_up` holds the RIDs of calls whose callers have gone
    and whose terminals have yet to come: another call under such an id would be given the answer of the first.
    `relay_told` is what has been said of the relay.
    """

    def __init__(
        self,
        settings: HostSettings,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        up_queued: Callable[[], int] = lambda: 0,
    ) -> None:
        self.host_id = uuid4().hex
        self.settings = settings
        self.clock = clock
        self.wall_clock = wall_clock
        self.caps: CapTable[Cartridge] = CapTable()
        self.incoming: RequestTable[RowKey, IncomingRow] = RequestTable(settings.table_limit)
        self.outgoing: RequestTable[MessageId, OutgoingRow] = RequestTable(settings.table_limit)
        self.released = ReleasedRing()
        self.given_up = ReleasedRing()
        self.counts = FrameCounts(self.released)
        self.limits = settings.limits
        self.up_max_frame = min(settings.limits.max_frame, DEFAULT_LIMITS.max_frame)
        self.debt = Debt(settings.debt_limit)
        self._up_queued = up_queued
        self.reset_backlog()
        self.policy: NetworkPolicy | None = settings.policy
        self.relay_state: bytes = b""
        self.relay_told = Told()
        self.alone_since: float | None = None
        self.closing: CancelReason | None = None
        self.launch: Callable[[Cartridge], None] = lambda _: None
        self.up: list[Parcel] = []
        self.advertise = False
        self.touched: dict[Cartridge, None] = {}

    def reset_backlog(self) -> None:
        """Count what is queued for the relay anew: the link is another."""
        self.backlog = Backlog(self._up_queued)

    def send_up(self, frame: Frame) -> None:
        """Send a frame of the host's own to the relay."""
        self.up.append(self.for_relay(frame))

    def for_relay(self, frame: Frame) -> FrameView:
        """Return an ERR or CANCEL of the host's own as it fits the relay's link."""
        return fitting(frame, self.up_max_frame)

    def send_down(self, cartridge: Cartridge, *parcels: Parcel) -> None:
        """Send frames to a cartridge whose process takes them; to any other they are lost, as its requests are."""
        if cartridge.port is not None:
            cartridge.down.extend(parcels)
            self.touched[cartridge] = None

    def send_err_down(self, call: OutgoingRow, failure: Failure) -> None:
        """End a call at its caller."""
        frame = err_frame(call.rid, failure, xid=call.xid, seq=call.answer.next_seq)
        self.send_down(call.cartridge, fitting(frame, call.cartridge.limits.max_frame))

    def send_cancel_down(self, row: IncomingRow, reason: CancelReason, *, force_kill: bool = False) -> None:
        """Cancel a request at its handler."""
        frame = cancel_frame(row.rid, reason, xid=row.xid, force_kill=force_kill)
        self.send_down(row.cartridge, fitting(frame, row.cartridge.limits.max_frame))

    def flush_down(self) -> None:
        """Hand every process what this turn has for it."""
        touched, self.touched = self.touched, {}
        for cartridge in touched:
            batch, cartridge.down = cartridge.down, []
            if cartridge.port is not None and batch:
                before = cartridge.port.bytes_queued
                cartridge.port.send(batch)
                if before or cartridge.bytes_queued:
                    cartridge.backlog.sent(before)

    def unroutable(self, view: FrameView, sender: Cartridge | None = None, why: str = "") -> None:
        """Count a frame that no row takes, and say so if it is a real loss."""
        line = self.counts.unroutable(view)
        if line is not None:
            self._tell_loss(line, "no_route", view, sender, why, ())

    def drop(
        self, view: FrameView, reason: DropReason, sender: Cartridge | None, why: str = "", *values: object
    ) -> None:
        """Count a frame of `sender`, or of the relay, that is thrown away. `why`, with `values`, is for the log."""
        line = self.counts.drop(view, reason)
        self._tell_loss(line, reason, view, sender, why, values)

    def _tell_loss(
        self, line: str, reason: DropReason, view: FrameView, sender: Cartridge | None, why: str,
        values: tuple[object, ...],
    ) -> None:  # fmt: skip
        """Warn of the first frame of a sender that is lost in some way. The others are counted: they may be many."""
        told = self.relay_told if sender is None else sender.told
        is_news = (bool(why) or reason == "no_route") and told.is_news(f"{reason} {view.type.name} {why}")
        level = logging.WARNING if is_news else logging.DEBUG
        if not log.isEnabledFor(level):
            return
        name = "the relay" if sender is None else f"cartridge {sender.id!r}"
        because = f": {why % values if values else why}" if why else ""
        more = " (more of this kind are counted, and told at log level debug)" if is_news else ""
        log.log(level, "%s: %s%s%s", name, line, because, more)

    def tell_trouble(self, cartridge: Cartridge, kind: str, trouble: Failure) -> None:
        """Show a trouble of a cartridge that runs, and warn of the first of its kind."""
        if cartridge.told.is_news(kind):
            cartridge.trouble, cartridge.trouble_at_unix = trouble, self.wall_clock()
            log.warning("cartridge %r: %s", cartridge.id, trouble.message)

    def no_room(self, payer: Cartridge | None) -> Failure:
        """Return what a request ends with whose next stream finds no room; one that has used up its share is told."""
        failure = self.debt.refusal(payer)
        if payer is not None and self.debt.is_greedy(payer):
            self.tell_trouble(payer, "debt", failure)
        return failure

    def start(self, cartridge: Cartridge) -> None:
        """Have the process of a cartridge started."""
        cartridge.begin()
        self.launch(cartridge)

    def offer_caps(self, cartridge: Cartridge) -> None:
        """Bring the cap table to what the cartridge offers now, and have it advertised.

        Caps that stay keep their place: between equals the earliest registered is chosen.
        """
        wanted = dict.fromkeys(cartridge.caps)
        for registration in self.caps:
            if registration.target is cartridge and registration.cap in wanted:
                del wanted[registration.cap]
            elif registration.target is cartridge:
                self.caps.retire(registration)
        for cap in wanted:
            self.caps.register(cap, cartridge)
        self.advertise = True

    def withdraw_caps(self, cartridge: Cartridge) -> None:
        """Take what a cartridge offers out of the cap table, and have it advertised."""
        for registration in list(self.caps):
            if registration.target is cartridge:
                self.caps.retire(registration)
        self.advertise = True

    def snapshot(self) -> dict[str, Any]:
        """Return the protocol stats that RELAY_NOTIFY carries."""
        return {
            **self.counts.snapshot(),
            "outgoing_rids": len(self.outgoing),
            "incoming_rxids": len(self.incoming),
            "incoming_to_peer_rids": sum(1 for call in self.outgoing.rows() if call.parent is not None),
            "outgoing_max_seq": len(self.incoming) + len(self.outgoing),
            "routing_gc_runs_total": 0,
            "routing_gc_evicted_total": 0,
        }


def fitting(frame: Frame, max_frame: int) -> FrameView:
    """Return an ERR or CANCEL of the host's own that fits a link: words of others in it may be as long as a frame."""
    view = view_of(frame)
    if len(view.body) <= max_frame - XID_HEADROOM:
        return view
    meta = frame.meta or {}
    kept = {key: meta[key] for key in ("code", "message", "attribution_class") if key in meta}
    frame.meta = {
        key: text if len(text) <= _KEPT else f"{text[:_KEPT]}… ({len(text)} characters)" for key, text in kept.items()
    }
    return view_of(frame)
