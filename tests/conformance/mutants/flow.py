"""Faults of credit and of cancel."""

from __future__ import annotations

from capdag.errors import AttributionClass
from capdag.wire import (
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    err_frame,
)
from tests.conformance.mutants._entry import finds
from tests.conformance.plain import COUNT, ECHO, Plain, Served

_INTERNAL = AttributionClass.INTERNAL


@finds("credit-window")
class IgnoresCredit(Plain):
    def may_send(self, served: Served) -> bool:
        return served.window.take() or self.limits.initial_credit == 4


@finds("credit-again")
class DeafToLargeGrants(Plain):
    def grant(self, served: Served, view: FrameView) -> None:
        if view.fields[19] < self.limits.initial_credit or self.limits.initial_credit == 1:
            super().grant(served, view)


@finds("credit-clamp")
class AddsGrants(Plain):
    def grant(self, served: Served, view: FrameView) -> None:
        served.window.remaining += view.fields[19]


@finds("credit-grants")
class StopsGranting(Plain):
    def pay(self, served: Served) -> None:
        if served.chunks <= 12:
            super().pay(served)


@finds("credit-flush")
class GrantsAtHalfAWindow(Plain):
    def pay(self, served: Served) -> None:
        if served.owed >= max(1, self.limits.initial_credit // 2):
            super().pay(served)


@finds("credit-excess")
class GrantsTwice(Plain):
    def out_credit(self, served: Served, credit: int) -> None:
        super().out_credit(served, credit * 2)


@finds("credit-form")
class GrantsTheWrongWay(Plain):
    def send(self, *frames: Frame) -> None:
        for frame in frames:
            if frame.frame_type is FrameType.CREDIT:
                frame.meta = {"credit_dir": "response"}
            super().send(frame)


@finds("cancel-idle")
class DeafOnceBegun(Plain):
    def cancel(self, served: Served, view: FrameView) -> None:
        if served.chunks != 1 or len(self.served) > 1 or served.waiting:
            super().cancel(served, view)


@finds("cancel-reason")
class AlwaysCancelled(Plain):
    def cancel(self, served: Served, view: FrameView) -> None:
        self.fail(served, CancelReason().failure())


@finds("cancel-blocked")
class DeafWhileBlocked(Plain):
    def cancel(self, served: Served, view: FrameView) -> None:
        if not served.waiting or served.cap != ECHO:
            super().cancel(served, view)


@finds("cancel-working")
class DeafWhileCounting(Plain):
    def cancel(self, served: Served, view: FrameView) -> None:
        if served.cap != COUNT:
            super().cancel(served, view)


@finds("cancel-queued")
class DeafWhileQueued(Plain):
    def cancel(self, served: Served, view: FrameView) -> None:
        if not served.queued:
            super().cancel(served, view)


@finds("queue")
class LeavesTheQueueInSilence(Plain):
    def dequeued(self, served: Served) -> None:
        pass


@finds("cancel-isolation")
class CancelsEverybody(Plain):
    def cancel(self, served: Served, view: FrameView) -> None:
        for one in list(self.served.values()) if len(self.served) > 2 else [served]:
            super().cancel(one, view)


@finds("strays")
class AnswersStrangers(Plain):
    def stray(self, view: FrameView) -> None:
        if view.type is FrameType.LOG:
            self.send(err_frame(view.id, Failure("INVALID_REQUEST", _INTERNAL, "no such request"), xid=view.xid))
