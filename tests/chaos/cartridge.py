"""A cartridge whose misdeeds come with its requests: `python -S tests/chaos/cartridge.py TRAIT...`.

The argument of a request is a script, "MISDEED rest": what the cartridge does when the request's body has ended;
"call" sends the rest to another cartridge as its script. A trait is a misdeed of the whole process. Most misdeeds are
those of `tests.misbehave`, done by a process that goes on with its other requests where it can.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from capdag.wire import (
    IDENTITY_CAP,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    decode_value,
    encode_value,
    end_frame,
    log_frame,
)
from tests import misbehave
from tests.misbehave import CALL, GOOD, Cartridge, Request

TRAITS = ("IgnoresSigterm", "ExitsBeforeHello", "StartsSometimes", "LateHeartbeats")


class Scripted(Cartridge):
    """Does for each request what its argument says."""

    def begin(self) -> None:
        self.deaf: set[object] = set()
        if "IgnoresSigterm" in self.arguments:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "ExitsBeforeHello" in self.arguments or ("StartsSometimes" in self.arguments and os.getpid() % 2):
            os.write(2, b"no such weights: model.gguf\n")
            os._exit(3)

    def stdin_ended(self) -> None:
        if "IgnoresSigterm" in self.arguments:
            time.sleep(60)
        super().stdin_ended()

    def heartbeat(self, view: FrameView) -> None:
        if "LateHeartbeats" in self.arguments:
            time.sleep(0.05)
        super().heartbeat(view)

    def on_cancel(self, request: Request, view: FrameView) -> None:
        if request.rid not in self.deaf:
            super().on_cancel(request, view)

    def on_body(self, request: Request, view: FrameView) -> None:
        if view.type is FrameType.END and request.cap not in (GOOD, CALL, IDENTITY_CAP):
            word, _, rest = b"".join(map(decode_value, request.payloads)).partition(b" ")
            request.payloads = [encode_value(rest)]
            SCRIPT[word.decode()](self, request)
        else:
            super().on_body(request, view)

    # Misdeeds that a process survives

    def ignore_cancel(self, request: Request) -> None:
        """Never end, and hear no CANCEL."""
        self.deaf.add(request.rid)

    def answer_after_cancel(self, request: Request) -> None:
        """Hear no CANCEL, and answer in full only when the next request comes."""
        self.deaf.add(request.rid)
        late = [other for other in self.requests.values() if other.rid in self.deaf and other is not request]
        for other in late:
            self.echo(other)

    def reply_late(self, request: Request) -> None:
        time.sleep(0.05)
        self.echo(request)

    def progress_without_newline(self, request: Request) -> None:
        """Write progress as engines do: carriage returns, and no end of line."""
        for percent in range(0, 100, 5):
            os.write(2, b"\rloading %3d%% " % percent + b"#" * percent)
        self.echo(request)

    def leak_grandchild(self, request: Request) -> None:
        """Leave a process that holds stdout and stderr, and go on."""
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
            os._exit(0)
        self.echo(request)

    def wrong_checksum(self, request: Request) -> None:
        payload = encode_value(b"data")
        self.start(request)
        self.send(
            Frame(
                FrameType.CHUNK,
                request.rid,
                stream_id="out",
                payload=payload,
                chunk_index=0,
                checksum=1,
                routing_id=request.xid,
            )
        )
        self.stream_end(request, 1)
        self.send(end_frame(request.rid, xid=request.xid))

    def answer_in_pieces(self, request: Request) -> None:
        """Log, answer with more than one stream, and end."""
        del self.requests[request.rid, request.xid]
        for stream in ("one", "two"):
            self.start(request, stream)
            for index in range(16):
                self.send(log_frame(request.rid, LogRecord("progress", "on", index / 16), xid=request.xid))
                self.chunk(request, encode_value(b"piece"), index, stream)
            self.stream_end(request, 16, stream)
        self.send(end_frame(request.rid, xid=request.xid))

    def hang(self, request: Request) -> None:
        """Stay silent until cancelled."""


def _done(name: str) -> Callable[[Scripted, Request], None]:
    """Return what a misdeed does at the end of a body, for a process that is not of its class."""
    step: Callable[[Scripted, Request], None] = misbehave.MISDEEDS[name].on_end
    return step


SCRIPT: dict[str, Callable[[Scripted, Request], None]] = {
    "echo": Scripted.echo,
    "pieces": Scripted.answer_in_pieces,
    "call": Scripted.call,
    "hang": Scripted.hang,
    "late": Scripted.reply_late,
    "progress": Scripted.progress_without_newline,
    "checksum": Scripted.wrong_checksum,
    "deaf": Scripted.ignore_cancel,
    "afterwards": Scripted.answer_after_cancel,
    "grandchild": Scripted.leak_grandchild,
    "flood": _done("FloodsStderr"),
    "twice": _done("AnswersTwice"),
    "stranger": _done("AnswersAStranger"),
    "greedy": _done("IgnoresCredit"),
    "after-end": _done("ChunkAfterStreamEnd"),
    "streams": _done("ManyStreams"),
    "fat": _done("FatPayload"),
    "prints": _done("Prints"),
    "torn": _done("DiesInAFrame"),
    "policy": _done("SendsPolicy"),
    "hello": _done("SendsHello"),
    "relay-state": _done("SendsRelayState"),
    "stops": _done("StopsItself"),
    "dies": _done("Dies"),
    "leaves": _done("Leaves"),
    "ends-and-leaves": _done("EndsAndLeaves"),
    "closes": _done("ClosesStdout"),
    "orphans": _done("LeavesGrandchild"),
    "unfinished-call": _done("CallsAndWaits"),
}
"""What a request may ask for, by the first word of its argument."""


if __name__ == "__main__":
    Scripted("scripted", sys.argv[1:]).run()
