"""Faults of what must be refused, or read."""

from __future__ import annotations

from capdag.errors import AttributionClass
from capdag.wire import (
    IDENTITY_CAP,
    Failure,
    FrameType,
    FrameView,
    fnv1a_64,
)
from tests.conformance.mutants._entry import finds
from tests.conformance.plain import COUNT, ECHO, Plain, Served

_INTERNAL = AttributionClass.INTERNAL


@finds("no-handler")
class AnotherCode(Plain):
    def no_handler(self) -> Failure:
        return Failure("UNKNOWN_CAP", _INTERNAL, "what is this")


@finds("no-cap")
class BlamesItself(Plain):
    def no_cap(self) -> Failure:
        return Failure("INVALID_REQUEST", _INTERNAL, "no cap")


@finds("req-payload")
class TakesAPayload(Plain):
    def refusal(self, view: FrameView) -> Failure | None:
        refusal = super().refusal(view)
        return None if refusal and refusal.code == "PROTOCOL_ERROR" else refusal


@finds("missing-argument")
class NeedsNoArgument(Plain):
    def missing(self, served: Served) -> None:
        self.start(served)
        self.finish(served)


class _Tolerant(Plain):
    """Takes what one rule forbids."""

    def tolerates(self, served: Served, view: FrameView) -> bool:
        raise NotImplementedError

    def body(self, served: Served, view: FrameView) -> None:
        if not self.tolerates(served, view):
            super().body(served, view)


@finds("bad-checksum")
class TakesAnyChecksum(_Tolerant):
    def tolerates(self, served: Served, view: FrameView) -> bool:
        return view.type is FrameType.CHUNK and view.fields[16] != fnv1a_64(view.fields[6])


@finds("bad-index")
class TakesAnyIndex(_Tolerant):
    def tolerates(self, served: Served, view: FrameView) -> bool:
        return view.type is FrameType.CHUNK and view.fields[14] > served.chunks


@finds("bad-count")
class TakesAnyCount(_Tolerant):
    def tolerates(self, served: Served, view: FrameView) -> bool:
        return view.type is FrameType.STREAM_END and view.fields[15] != served.chunks


@finds("bad-order")
class TakesStrangeStreams(_Tolerant):
    def tolerates(self, served: Served, view: FrameView) -> bool:
        return view.type is FrameType.CHUNK and view.stream_id == "another"


@finds("bad-end")
class TakesOpenStreams(_Tolerant):
    def tolerates(self, served: Served, view: FrameView) -> bool:
        return view.type is FrameType.END and bool(served.argument) and not served.ended


@finds("bad-payload")
class TakesAnyPayload(Plain):
    def body(self, served: Served, view: FrameView) -> None:
        if view.type is FrameType.CHUNK and view.fields[6].startswith(b"\x58\xff"):
            self.start(served)
            self.out_chunk(served, view.fields[6], None)
        else:
            super().body(served, view)


@finds("body-taken-back")
class DeafToBodyErr(Plain):
    def body_taken_back(self, served: Served, view: FrameView) -> None:
        pass


@finds("same-rid")
class ReplacesTheFirst(Plain):
    def refusal(self, view: FrameView) -> Failure | None:
        known = self.served.pop(view.id, None)
        refusal = super().refusal(view)
        if known is not None:
            self.served[view.id] = known
        return refusal


@finds("less-said")
class WantsTheWholeUrn(Plain):
    def cap_of(self, view: FrameView) -> str | None:
        asked = view.fields[10]
        return str(asked) if asked in (IDENTITY_CAP, ECHO, COUNT) else None


@finds("later-keys")
class RefusesLaterKeys(Plain):
    def take(self, view: FrameView) -> None:
        if view.frame().extra:
            self.exit = 1
        else:
            super().take(view)
