"""A cartridge that does one thing wrong, for tests of hosts: `python -S tests/misbehave.py MISDEED`, a class name.

It speaks frames through `capdag.wire` with blocking reads and writes, or raw bytes where the misdeed asks for them. It
serves CAP, whose requests suffer the misdeed, and GOOD, which echoes small arguments, so that a bystander's fate can
be told. PYTHONPATH must name the repository and the packages (see `environment`). Hundreds of them are started, so
it imports little: not pathlib, not the URN room.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from capdag.errors import AttributionClass
from capdag.wire import (
    ALL_POOL,
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    RESPONSE,
    TERMINAL_TYPES,
    Failure,
    Frame,
    FrameSplitter,
    FrameType,
    FrameView,
    LogRecord,
    MessageId,
    PoolState,
    SeqAssigner,
    body_end_frame,
    credit_frame,
    decode_value,
    encode_frame,
    encode_value,
    end_frame,
    err_frame,
    failure_of,
    fnv1a_64,
    hello_frame,
    inspect,
    log_frame,
    policy_frame,
    read_cancel,
)
from capdag.wire.limits import LEAST_LIMITS
from capdag.wire.policy import NetworkPolicy

CAP = "cap:in=media:octets;misdeed;out=media:octets"
GOOD = "cap:good;in=media:octets;out=media:octets"
CALL = "cap:call;in=media:octets;out=media:octets"

ROOT = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120


def command(misdeed: str, *arguments: str) -> list[str]:
    """Return the command of a cartridge with this misdeed."""
    return [sys.executable, "-S", __file__, misdeed, *arguments]


def environment() -> dict[str, str]:
    """Return what its environment needs."""
    import site

    return {"PYTHONPATH": os.pathsep.join([ROOT, *site.getsitepackages()])}


def cap_object(urn: str) -> dict[str, Any]:
    """Return a manifest cap object for octets in, octets out."""
    return _cap_object(urn, "media:octets")


def _cap_object(urn: str, media: str) -> dict[str, Any]:
    return {
        "urn": urn,
        "title": urn.split(";")[0].removeprefix("cap:"),
        "aliases": [urn.split(";")[0].removeprefix("cap:") or "it"],
        "args": [
            {
                "media_urn": media,
                "name": "input",
                "required": True,
                "sources": [{"stdin": media}],
            }
        ],
        "outputs": [{"media_urn": media, "name": "output", "output_description": "bytes"}],
        "metadata": {"model": "Original/Id"},
    }


def manifest(name: str, served: list[str]) -> dict[str, Any]:
    """Return the manifest."""
    caps = [_cap_object(IDENTITY_CAP, "media:"), *map(cap_object, served)]
    return {
        "name": name,
        "version": "1",
        "channel": "release",
        "registry_url": None,
        "description": "",
        "cap_groups": [{"name": "g", "caps": caps}],
    }


class Request:
    """One request being served: its ids, cap and argument bytes so far."""

    def __init__(self, view: FrameView) -> None:
        self.rid = view.id
        self.xid = view.xid
        self.cap: str = view.fields[10]
        self.payloads: list[bytes] = []
        self.streams = 0
        self.body_ended = False


class Cartridge:
    """A cartridge that behaves; the misdeeds replace its steps."""

    limits = DEFAULT_LIMITS

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.arguments = arguments
        settings = json.loads(os.environ["CAPDAG_CONFIG"])
        self.served: list[str] = settings.get("caps", [CAP, GOOD, CALL])
        self.called: str = settings.get("called", GOOD)
        self.seq = SeqAssigner()
        self.requests: dict[tuple[MessageId, MessageId | None], Request] = {}
        self.calls: dict[MessageId, Request] = {}
        self.seen: list[FrameView] = []

    # Bytes

    def raw(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            if not self.seq.assign(frame):
                return
            self.send_as_is(frame)

    def send_as_is(self, frame: Frame) -> None:
        body = encode_frame(frame)
        self.raw(len(body).to_bytes(4, "big") + body)

    # Steps

    def run(self) -> None:
        self.begin()
        splitter = FrameSplitter()
        while data := os.read(0, 65536):
            for body in splitter.feed(data):
                self.take(inspect(body))
        self.stdin_ended()

    def begin(self) -> None:
        """Before anything is read."""

    def stdin_ended(self) -> None:
        sys.exit(0)

    def hello(self, view: FrameView) -> None:
        pools = dict.fromkeys([IDENTITY_CAP, *self.served, ALL_POOL], PoolState(4, 4))
        said = json.dumps(manifest(self.name, self.served)).encode()
        self.send_as_is(hello_frame(self.limits, manifest=said, pools=pools))

    def take(self, view: FrameView) -> None:
        self.seen.append(view)
        key = (view.id, view.xid)
        if view.type is FrameType.HELLO:
            self.hello(view)
        elif view.type is FrameType.HEARTBEAT:
            self.heartbeat(view)
        elif view.type is FrameType.REQ:
            request = self.requests[key] = Request(view)
            if request.cap == CAP:
                self.on_request(request)
        elif view.type is FrameType.CREDIT:
            self.on_credit(view)
        elif view.type is FrameType.CLOSE_STREAM:
            self.on_close_stream(view)
        elif view.id in self.calls and not self.is_body(view):
            self.on_response(self.calls[view.id], view)
        elif key in self.requests:
            self.requests[key].body_ended = view.type in TERMINAL_TYPES
            self.on_body(self.requests[key], view)

    def is_body(self, view: FrameView) -> bool:
        """Tell the two directions of a call apart that has come back to the process which made it."""
        request = self.requests.get((view.id, view.xid))
        return request is not None and (view.type is FrameType.CANCEL or not request.body_ended)

    def heartbeat(self, view: FrameView) -> None:
        pools = json.dumps({ALL_POOL: PoolState(4, 4, len(self.requests)).as_json()}).encode()
        self.send(Frame(FrameType.HEARTBEAT, view.id, meta={"drops_total": 3, "rss_mb": 7, "pools": pools}))

    def on_body(self, request: Request, view: FrameView) -> None:
        if view.type is FrameType.CHUNK:
            request.payloads.append(view.fields[6])
            self.send(credit_frame(request.rid, str(view.stream_id), 1, "request", xid=request.xid))
        elif view.type is FrameType.CANCEL:
            self.on_cancel(request, view)
        elif view.type is FrameType.ERR:
            failure = failure_of(view.meta)
            self.send(err_frame(request.rid, failure._replace(message=f"body: {failure.message}"), xid=request.xid))
        elif view.type is FrameType.END:
            if request.cap == CAP:
                self.on_end(request)
            elif request.cap == CALL:
                self.call(request)
            else:
                self.echo(request)

    def on_request(self, request: Request) -> None:
        """At the REQ of CAP."""

    def on_end(self, request: Request) -> None:
        """At the end of the body of CAP."""
        self.echo(request)

    def on_credit(self, view: FrameView) -> None:
        """At a grant."""

    def on_close_stream(self, view: FrameView) -> None:
        """At a tap-off."""

    def on_cancel(self, request: Request, view: FrameView) -> None:
        del self.requests[request.rid, request.xid]
        self.send(err_frame(request.rid, read_cancel(view.meta).failure(), xid=request.xid))

    # Answers

    def start(self, request: Request, stream: str = "out") -> None:
        self.send(
            Frame(
                FrameType.STREAM_START,
                request.rid,
                stream_id=stream,
                media_urn="media:octets",
                is_sequence=False,
                routing_id=request.xid,
            )
        )

    def chunk(self, request: Request, payload: bytes, index: int = 0, stream: str = "out") -> None:
        self.send(
            Frame(
                FrameType.CHUNK,
                request.rid,
                stream_id=stream,
                payload=payload,
                chunk_index=index,
                checksum=fnv1a_64(payload),
                routing_id=request.xid,
            )
        )

    def stream_end(self, request: Request, count: int, stream: str = "out") -> None:
        self.send(Frame(FrameType.STREAM_END, request.rid, stream_id=stream, chunk_count=count, routing_id=request.xid))

    def echo(self, request: Request) -> None:
        self.requests.pop((request.rid, request.xid), None)
        self.start(request)
        for index, payload in enumerate(request.payloads):
            self.chunk(request, payload, index)
        self.stream_end(request, len(request.payloads))
        self.send(end_frame(request.rid, xid=request.xid))

    # Calls

    def call(self, request: Request) -> None:
        """Call another cap with the argument and give its answer as this one's."""
        rid = os.urandom(16)
        self.calls[rid] = request
        request.payloads, payloads = [], request.payloads
        parent = {"parent_rid": request.rid}
        self.send(Frame(FrameType.REQ, rid, cap=self.called, content_type="application/cbor", payload=b"", meta=parent))
        inner = Inner(rid)
        self.start(inner, "out")
        for index, payload in enumerate(payloads):
            self.chunk(inner, payload, index, "out")
        self.stream_end(inner, len(payloads), "out")
        self.send(body_end_frame(rid))

    def on_response(self, request: Request, view: FrameView) -> None:
        if view.type is FrameType.CHUNK:
            request.payloads.append(view.fields[6])
            self.send(credit_frame(view.id, str(view.stream_id), 1, RESPONSE))
        elif view.type is FrameType.LOG:
            self.send(Frame(FrameType.LOG, request.rid, meta=dict(view.meta), routing_id=request.xid))
        elif view.type is FrameType.ERR:
            del self.calls[view.id]
            failure = failure_of(view.meta)
            self.send(err_frame(request.rid, failure._replace(message=f"call: {failure.message}"), xid=request.xid))
        elif view.type is FrameType.END:
            del self.calls[view.id]
            self.echo(request)


MISDEEDS: dict[str, type[Cartridge]] = {"Nothing": Cartridge}


def misdeed(kind: type[Cartridge]) -> type[Cartridge]:
    MISDEEDS[kind.__name__] = kind
    return kind


# Before HELLO


@misdeed
class ExitBeforeHello(Cartridge):
    def begin(self) -> None:
        os.write(2, b"no such weights: model.gguf\n")
        os._exit(3)


@misdeed
class Silent(Cartridge):
    def hello(self, view: FrameView) -> None:
        pass


@misdeed
class WrongVersion(Cartridge):
    def hello(self, view: FrameView) -> None:
        self.send_as_is(Frame(FrameType.HELLO, 0, meta={**self.limits._asdict(), "version": 5, "manifest": b"{}"}))


@misdeed
class TinyFrames(Cartridge):
    """Would have every cartridge of its host make do with frames of 40 bytes."""

    limits = DEFAULT_LIMITS._replace(max_frame=40)


@misdeed
class WrongIdentity(Cartridge):
    def echo(self, request: Request) -> None:
        request.payloads = [encode_value(b"not the nonce")]
        super().echo(request)


@misdeed
class FailingIdentity(Cartridge):
    """Gives the nonce back, and says that it failed."""

    def echo(self, request: Request) -> None:
        self.start(request)
        self.chunk(request, request.payloads[0])
        self.stream_end(request, 1)
        self.send(Frame(FrameType.END, request.rid, eof=True, meta={"exit_code": 1}))


@misdeed
class OddManifest(Cartridge):
    """Says too little of CAP, names it once more in another spelling, and has no pools."""

    def hello(self, view: FrameView) -> None:
        said = manifest(self.name, self.served)
        (group,) = said["cap_groups"]
        del group["caps"][1]["title"]
        group["caps"][1]["args"][0]["required"] = "yes"
        group["caps"].append({**cap_object("cap:out=media:octets;misdeed;in=media:octets"), "aliases": ["second"]})
        self.send_as_is(hello_frame(self.limits, manifest=json.dumps(said).encode(), pools={}))


@misdeed
class SilentIdentity(Cartridge):
    def echo(self, request: Request) -> None:
        pass


@misdeed
class PrintsAtStart(Cartridge):
    def begin(self) -> None:
        os.write(1, b"Loading model...\n")


@misdeed
class TracebackOnStdout(Cartridge):
    def begin(self) -> None:
        os.write(1, b"Traceback (most recent call last):\n  File ...\n")
        os._exit(1)


@misdeed
class SmallWindow(Cartridge):
    """Agrees on a window of 2, and breaks off if more comes than it has granted."""

    limits = LEAST_LIMITS

    def on_request(self, request: Request) -> None:
        self.left = 2

    def on_body(self, request: Request, view: FrameView) -> None:
        if request.cap == CAP and view.type is FrameType.CHUNK:
            self.left -= 1
            if self.left < 0:
                os.write(2, b"more than two CHUNKs without a grant\n")
                os._exit(5)
            time.sleep(0.005)
            self.left += 1
        super().on_body(request, view)

    def echo(self, request: Request) -> None:
        request.payloads = [encode_value(b"".join(map(decode_value, request.payloads)))]
        super().echo(request)


# During a request


@misdeed
class Dies(Cartridge):
    """SIGKILL of itself in the middle of a stream."""

    def on_end(self, request: Request) -> None:
        self.start(request)
        self.chunk(request, request.payloads[0])
        os.write(2, b"about to die\n")
        os.kill(os.getpid(), signal.SIGKILL)


@misdeed
class Leaves(Cartridge):
    """Exits with status 0 while it holds a request."""

    def on_end(self, request: Request) -> None:
        os._exit(0)


@misdeed
class EatsMemory(Cartridge):
    """Takes a gigabyte, which its control group may not give."""

    def on_end(self, request: Request) -> None:
        self.eaten = bytearray(1 << 30)
        self.echo(request)


@misdeed
class DiesInAFrame(Cartridge):
    def on_end(self, request: Request) -> None:
        self.start(request)
        self.raw(b"\0\0\1\0\xa5")
        os._exit(1)


@misdeed
class EndsAndLeaves(Cartridge):
    """Its END lies in the pipe when it exits."""

    def on_end(self, request: Request) -> None:
        self.echo(request)
        os._exit(0)


@misdeed
class ClosesStdout(Cartridge):
    def on_end(self, request: Request) -> None:
        os.close(1)
        time.sleep(60)


@misdeed
class ClosesStdoutAndReads(Cartridge):
    """Reads on, and would exit with status 0 at the end of its stdin."""

    def on_end(self, request: Request) -> None:
        os.close(1)


@misdeed
class ClosesStdoutAndLeaves(Cartridge):
    def on_end(self, request: Request) -> None:
        os.close(1)
        time.sleep(0.2)
        os._exit(0)


@misdeed
class IgnoresSigterm(Cartridge):
    def begin(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def stdin_ended(self) -> None:
        time.sleep(60)


@misdeed
class FloodsStderr(Cartridge):
    def on_end(self, request: Request) -> None:
        for _ in range(200):
            os.write(2, b"flood " * 1000 + b"\n")
        self.echo(request)


@misdeed
class Prints(Cartridge):
    """A stray print in a handler."""

    def on_end(self, request: Request) -> None:
        self.start(request)
        os.write(1, b"progress: 50%\n")
        time.sleep(60)


@misdeed
class BadBytes(Cartridge):
    def on_end(self, request: Request) -> None:
        self.raw(bytes.fromhex(self.arguments[0]))
        time.sleep(60)


@misdeed
class IgnoresCancel(Cartridge):
    """Takes requests and never ends them."""

    def on_end(self, request: Request) -> None:
        pass

    def on_cancel(self, request: Request, view: FrameView) -> None:
        pass


@misdeed
class WritesOn(Cartridge):
    """Goes on writing under credit after a cancel, and ends as if nothing had happened."""

    def on_end(self, request: Request) -> None:
        self.start(request)
        self.credit = 32
        self.index = 0
        self.write(request)

    def write(self, request: Request) -> None:
        while self.credit and self.index < 200:
            self.credit -= 1
            self.chunk(request, encode_value(b"x"), self.index)
            self.index += 1
        if self.index == 200:
            self.index += 1
            self.stream_end(request, 200)
            self.send(end_frame(request.rid, xid=request.xid))

    def on_credit(self, view: FrameView) -> None:
        request = self.requests.get((view.id, view.xid))
        if request is not None and request.cap == CAP:
            self.credit += view.fields[19]
            self.write(request)

    def on_cancel(self, request: Request, view: FrameView) -> None:
        pass


@misdeed
class IgnoresCredit(Cartridge):
    def on_end(self, request: Request) -> None:
        self.start(request)
        for index in range(40):
            self.chunk(request, encode_value(b"x"), index)


@misdeed
class ManyStreams(Cartridge):
    def on_end(self, request: Request) -> None:
        for number in range(70):
            self.start(request, f"s{number}")


@misdeed
class FatPayload(Cartridge):
    def on_end(self, request: Request) -> None:
        self.start(request)
        self.chunk(request, bytes(self.limits.max_chunk + 6))


@misdeed
class AnswersTwice(Cartridge):
    def on_end(self, request: Request) -> None:
        self.echo(request)
        self.send_as_is(end_frame(request.rid, xid=request.xid, seq=9))


@misdeed
class AnswersAStranger(Cartridge):
    def on_end(self, request: Request) -> None:
        self.send_as_is(end_frame(b"a stranger's id!", xid=77))
        self.echo(request)


@misdeed
class ChunkAfterStreamEnd(Cartridge):
    def on_end(self, request: Request) -> None:
        self.start(request)
        self.stream_end(request, 0)
        self.chunk(request, encode_value(b"late"))
        self.send(end_frame(request.rid, xid=request.xid))


@misdeed
class SendsPolicy(Cartridge):
    def on_end(self, request: Request) -> None:
        self.send(policy_frame(NetworkPolicy.FULL))


@misdeed
class SendsHello(Cartridge):
    def on_end(self, request: Request) -> None:
        self.hello(self.seen[0])


@misdeed
class SendsRelayState(Cartridge):
    def on_end(self, request: Request) -> None:
        self.send(Frame(FrameType.RELAY_STATE, 0, payload=b""))


@misdeed
class StopsItself(Cartridge):
    def on_end(self, request: Request) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


@misdeed
class LateHeartbeat(Cartridge):
    """Answers the first probe late and the others in time."""

    delay = 0.25

    def heartbeat(self, view: FrameView) -> None:
        time.sleep(self.delay)
        self.delay = 0.0
        super().heartbeat(view)


@misdeed
class BeatsTwice(Cartridge):
    def heartbeat(self, view: FrameView) -> None:
        super().heartbeat(view)
        super().heartbeat(view)


@misdeed
class Strays(Cartridge):
    """Sends frames that are not its to send, or say too little, each twice, and then answers."""

    def on_end(self, request: Request) -> None:
        ids: dict[str, Any] = {"id": request.rid, "routing_id": request.xid}
        attributed = {"message": "m", "attribution_class": "internal"}
        strays = [
            Frame(FrameType.CREDIT, **ids, stream_id="arg", credit=1),
            Frame(FrameType.CREDIT, **ids, stream_id="arg", credit=1, meta={"credit_dir": RESPONSE}),
            Frame(FrameType.CANCEL, **ids),
            Frame(FrameType.CLOSE_STREAM, **ids, stream_id="arg"),
            Frame(FrameType.END, request.rid, routing_id=99999, eof=True),
            Frame(FrameType.LOG, **ids, meta={"level": "info", "message": "unattributed"}),
            Frame(FrameType.LOG, **ids, meta=attributed),
            Frame(FrameType.LOG, **ids, meta={"level": "info", **attributed}),
            Frame(FrameType.LOG, **ids, meta={"level": "progress", "message": "p", "progress": 7.0}),
            Frame(FrameType.LOG, **ids, meta={"level": "progress", "message": "p", "progress": float("nan")}),
        ]
        for stray in strays:
            self.send_as_is(stray)
            self.send_as_is(stray)
        self.echo(request)


@misdeed
class BeatsUnderAnyId(Cartridge):
    """Answers heartbeats, those that answer its own too, under ids that nobody knows."""

    def heartbeat(self, view: FrameView) -> None:
        self.send(Frame(FrameType.HEARTBEAT, os.urandom(16), meta={"pools": b"{}"}))


@misdeed
class AnswersEveryBeat(Cartridge):
    """Sends a heartbeat of its own for the first that it gets, and answers all others, without meta."""

    probed = False

    def heartbeat(self, view: FrameView) -> None:
        self.send(Frame(FrameType.HEARTBEAT, view.id if self.probed else 4711))
        self.probed = True


@misdeed
class BadPools(Cartridge):
    def heartbeat(self, view: FrameView) -> None:
        self.send(Frame(FrameType.HEARTBEAT, view.id, meta={"pools": b"[]"}))


@misdeed
class NeverBeats(Cartridge):
    """Logs for ever, and answers no heartbeat."""

    def on_end(self, request: Request) -> None:
        while True:
            self.send(log_frame(request.rid, LogRecord("progress", "on", 0.5), xid=request.xid))
            time.sleep(0.01)


@misdeed
class ClosesStream(Cartridge):
    """Ends its request when its feed is tapped off."""

    def on_close_stream(self, view: FrameView) -> None:
        request = self.requests[view.id, view.xid]
        request.payloads = [encode_value(f"closed {view.stream_id}".encode())]
        self.echo(request)


@misdeed
class Beats(Cartridge):
    """Sends a heartbeat of its own and answers the request once the reply is there."""

    def on_end(self, request: Request) -> None:
        self.request = request
        self.send(Frame(FrameType.HEARTBEAT, 4711))

    def heartbeat(self, view: FrameView) -> None:
        if view.id == 4711:
            self.echo(self.request)
        else:
            super().heartbeat(view)


@misdeed
class LeavesGrandchild(Cartridge):
    """Dies while a grandchild holds its stdout and stderr."""

    def on_end(self, request: Request) -> None:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(60)
            os._exit(0)
        os.write(2, b"a grandchild remains: %d\n" % grandchild)
        os.kill(os.getpid(), signal.SIGKILL)


@misdeed
class CallsAndWaits(Cartridge):
    """Opens a call, does not end its body, and waits to be killed."""

    def on_end(self, request: Request) -> None:
        rid, parent = b"id of that call.", {"parent_rid": request.rid}
        self.send(Frame(FrameType.REQ, rid, cap=GOOD, content_type="application/cbor", payload=b"", meta=parent))


@misdeed
class LeavesItsCall(Cartridge):
    """Opens a call and answers, well or with an ERR as its argument says, without waiting for it."""

    def on_end(self, request: Request) -> None:
        answer = list(request.payloads)
        self.call(request)
        request.payloads = answer
        if decode_value(answer[0]) == b"fail":
            failure = Failure("HANDLER_ERROR", AttributionClass.RESOURCE, "too little memory")
            self.send(err_frame(request.rid, failure, xid=request.xid))
        else:
            self.echo(request)

    def on_response(self, request: Request, view: FrameView) -> None:
        if view.type is FrameType.ERR:
            os.write(2, f"the call ended: {failure_of(view.meta).code}\n".encode())


@misdeed
class FourPieces(Cartridge):
    """Answers with four CHUNKs at once."""

    def on_end(self, request: Request) -> None:
        request.payloads = [encode_value(b"%d" % number) for number in range(4)]
        self.echo(request)


@misdeed
class FourPiecesAndLeaves(FourPieces):
    def on_end(self, request: Request) -> None:
        super().on_end(request)
        os._exit(0)


@misdeed
class FloodsLogs(Cartridge):
    """Sends 4 MB of LOG before it answers."""

    def on_end(self, request: Request) -> None:
        for _ in range(4000):
            self.send(log_frame(request.rid, LogRecord("progress", "x" * 1000, 0.5), xid=request.xid))
        self.echo(request)


@misdeed
class FloodsCredit(Cartridge):
    """Grants its argument many times over."""

    def on_end(self, request: Request) -> None:
        for _ in range(20_000):
            self.send(credit_frame(request.rid, "arg", 1, "request", xid=request.xid))
        self.echo(request)


class Inner(Request):
    """A call of a cartridge's own, for the frames of its body."""

    def __init__(self, rid: MessageId) -> None:
        self.rid = rid
        self.xid = None


class Caller(Cartridge):
    """Calls GOOD at the end of the body of CAP, with 40 CHUNKs as credit or `free` allow."""

    rid = b"id of that call."
    xid: int | None = None
    free = False

    def on_end(self, request: Request) -> None:
        self.calls[self.rid] = request
        self.credit, self.index = 32, 0
        parent = {"parent_rid": request.rid}
        self.send(
            Frame(
                FrameType.REQ,
                self.rid,
                cap=GOOD,
                content_type="application/cbor",
                payload=b"",
                meta=parent,
                routing_id=self.xid,
            )
        )
        self.start(Inner(self.rid))
        self.write()

    def write(self) -> None:
        while self.index < 40 and (self.credit or self.free):
            self.credit -= 1
            self.chunk(Inner(self.rid), encode_value(b"x"), self.index)
            self.index += 1

    def on_credit(self, view: FrameView) -> None:
        if view.id == self.rid:
            self.credit += view.fields[19]
            self.write()


@misdeed
class CallsUnderCredit(Caller):
    pass


@misdeed
class CallsWhole(Caller):
    """Ends the body of its call, whose id is the same each time."""

    def write(self) -> None:
        if self.index < 40:
            super().write()
            if self.index == 40:
                self.stream_end(Inner(self.rid), 40)
                self.send(body_end_frame(self.rid))


@misdeed
class CallsWithoutCredit(Caller):
    free = True


@misdeed
class CallsWithXid(Caller):
    xid = 1


@misdeed
class CallsTwiceUnderOneId(Caller):
    def on_end(self, request: Request) -> None:
        super().on_end(request)
        self.seq = SeqAssigner()
        self.send(Frame(FrameType.REQ, self.rid, cap=GOOD, content_type="application/cbor", payload=b""))


@misdeed
class CallsSlowly(Cartridge):
    """Sends the body of its call piece by piece, each once an answer had the time to come."""

    def call(self, request: Request) -> None:
        rid = os.urandom(16)
        self.calls[rid] = request
        pieces, request.payloads = request.payloads, []
        self.send(Frame(FrameType.REQ, rid, cap=self.called, content_type="application/cbor", payload=b""))
        self.start(Inner(rid))
        for index, piece in enumerate(pieces):
            time.sleep(0.01)
            self.chunk(Inner(rid), piece, index)
        self.stream_end(Inner(rid), len(pieces))
        time.sleep(0.01)
        self.send(body_end_frame(rid))


@misdeed
class EchoesAtOnce(Cartridge):
    """Gives each piece back as it comes."""

    def on_request(self, request: Request) -> None:
        self.start(request, "back")
        self.sent = 0

    def on_body(self, request: Request, view: FrameView) -> None:
        if request.cap == CAP and view.type is FrameType.CHUNK:
            self.chunk(request, view.fields[6], self.sent, "back")
            self.sent += 1
        super().on_body(request, view)

    def on_end(self, request: Request) -> None:
        self.stream_end(request, self.sent, "back")
        self.send(end_frame(request.rid, xid=request.xid))


@misdeed
class EndsAtOnce(Cartridge):
    """Has answered before its argument comes."""

    def on_request(self, request: Request) -> None:
        self.start(request, "back")
        self.stream_end(request, 0, "back")
        self.send(end_frame(request.rid, xid=request.xid))

    def on_end(self, request: Request) -> None:
        pass


@misdeed
class Logs(Cartridge):
    """Logs before it answers, also while it answers a call."""

    def echo(self, request: Request) -> None:
        if request.cap != IDENTITY_CAP:
            self.send(log_frame(request.rid, LogRecord("progress", "half", 0.5), xid=request.xid))
        super().echo(request)


@misdeed
class TellsEnvironment(Cartridge):
    """Answers with its environment and open descriptors, as JSON."""

    def on_end(self, request: Request) -> None:
        descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
        policy = [view.meta["network"] for view in self.seen if view.type is FrameType.POLICY]
        kinds = [view.type.name for view in self.seen]
        answer = {"environment": dict(os.environ), "descriptors": descriptors, "policy": policy, "kinds": kinds}
        request.payloads = [encode_value(json.dumps(answer).encode())]
        self.echo(request)


def main() -> None:
    """Run one misdeed."""
    name, *arguments = sys.argv[1:]
    MISDEEDS[name](name, arguments).run()


if __name__ == "__main__":
    main()
