"""Faults of heartbeats, of pools, and of the end."""

from __future__ import annotations

from capdag.wire import (
    Frame,
    FrameType,
    FrameView,
)
from tests.conformance.mutants._entry import finds
from tests.conformance.plain import Plain, Served


@finds("heartbeat")
class CountsNothing(Plain):
    def reply(self, view: FrameView) -> None:
        super().reply(view)
        frame = self.out[-1]
        assert isinstance(frame, Frame)
        frame.meta = {"pools": (frame.meta or {})["pools"]}


@finds("heartbeat-once")
class AnswersReplies(Plain):
    """Probes with each answer, and takes the host's reply for a probe."""

    probes = 4711

    def end(self, served: Served) -> None:
        super().end(served)
        self.probes += 1
        self.send(Frame(FrameType.HEARTBEAT, self.probes))


@finds("heartbeat-load")
class BusyWithSending(Plain):
    def heartbeat(self, view: FrameView) -> None:
        if not any(one.waiting for one in self.served.values()):
            super().heartbeat(view)


@finds("pools-active")
class NeverBusy(Plain):
    def count(self, cap: str) -> tuple[int, int]:
        active, queued = super().count(cap)
        return (active if self.sizes[cap] else 0), queued


@finds("pools-idle")
class LeaksPlaces(Plain):
    leaked = 0

    def cancel(self, served: Served, view: FrameView) -> None:
        super().cancel(served, view)
        self.leaked += 1

    def count(self, cap: str) -> tuple[int, int]:
        active, queued = super().count(cap)
        return active + (self.leaked if not self.sizes[cap] else 0), queued


@finds("pool-size")
class FixedSizes(Plain):
    def set_sizes(self, sizes: dict[str, int]) -> None:
        pass


@finds("unknown-pool")
class TakesAnyPool(Plain):
    def sizes_known(self, sizes: dict[str, int]) -> bool:
        return True


@finds("eof")
class LeavesInAnger(Plain):
    def eof(self, *, torn: bool) -> None:
        self.exit = 0 if self.served or torn else 1


@finds("eof-busy")
class StaysWhileBusy(Plain):
    def eof(self, *, torn: bool) -> None:
        self.exit = None if self.served else 0


@finds("eof-torn")
class WaitsForTheRest(Plain):
    def eof(self, *, torn: bool) -> None:
        self.exit = None if torn else 0


@finds("left-behind")
class LeavesAChild(Plain):
    children = (4711,)


@finds("sigterm")
class IgnoresSigterm(Plain):
    def terminate(self) -> None:
        pass


class _Deaf(Plain):
    """Reads no more after raw bytes of one kind."""

    deaf = False

    def is_meant(self, data: bytes) -> bool:
        raise NotImplementedError

    def raw(self, data: bytes) -> None:
        if self.is_meant(data):
            self.deaf = True
        else:
            super().raw(data)

    def take(self, view: FrameView) -> None:
        if not self.deaf:
            super().take(view)


@finds("bad-length")
class WaitsForFourGigabytes(_Deaf):
    def is_meant(self, data: bytes) -> bool:
        return data.startswith(b"\xff\xff")


@finds("bad-body")
class HangsOnABadBody(_Deaf):
    def is_meant(self, data: bytes) -> bool:
        return data[4:5] == b"\xbb"


@finds("bad-depth")
class OverflowsItsStack(Plain):
    def raw(self, data: bytes) -> None:
        if len(data) > 50_000:
            self.signal = 11
        else:
            super().raw(data)
