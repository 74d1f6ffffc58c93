"""A cartridge that keeps every rule, as small as can be, without I/O: what it is told comes by calls, what it says goes
to `out`. The mutants of `mutants.py` each replace one of its steps."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from capdag.errors import AttributionClass, ProtocolError
from capdag.urn import CapUrn
from capdag.wire import (
    ALL_POOL,
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    REQUEST,
    XID_HEADROOM,
    Failure,
    Frame,
    FrameType,
    FrameView,
    InStreams,
    Limits,
    LogRecord,
    MessageId,
    PoolState,
    SendWindow,
    SeqAssigner,
    credit_frame,
    end_frame,
    err_frame,
    failure_of,
    fnv1a_64,
    hello_frame,
    item_payloads,
    log_frame,
    read_cancel,
    read_hello,
    scalar_payloads,
    write_pools,
)
from capdag.wire.manifest import identity_cap

ECHO = "cap:in=media:octets;out=media:octets;plain-echo"
COUNT = 'cap:in="media:count;enc=utf-8";out="media:list;number";plain-count'
_HEADER_ROOM = 150


def cap_object(urn: str, *, is_sequence: bool = False) -> dict[str, Any]:
    """Return a cap of the manifest."""
    cap = CapUrn.parse(urn)
    media = str(cap.in_media)
    name = urn.rpartition(";")[2]
    return {
        "urn": urn, "title": name, "aliases": [name],
        "args": [{"media_urn": media, "name": "input", "required": True, "sources": [{"stdin": media}]}],
        "outputs": [
            {
                "media_urn": str(cap.out_media), "name": "output", "output_description": name,
                "is_sequence": is_sequence,
            }
        ],
    }  # fmt: skip


class Served:
    """One request."""

    def __init__(self, view: FrameView, cap: str, window: int) -> None:
        self.rid = view.id
        self.xid = view.xid
        self.cap = cap
        self.queued = False
        self.arguments = InStreams(window)
        self.argument = ""
        self.chunks = 0
        self.data = b""
        self.ended = False
        self.body_ended = False
        self.window = SendWindow(window)
        self.waiting: deque[tuple[bytes, dict[str, Any] | None]] = deque()
        self.owed = 0
        self.opened = False
        self.sent = 0


class Plain:
    """The cartridge. `exit` and `signal` say how the process has ended, `unread` that it reads no more."""

    own_limits = DEFAULT_LIMITS
    children: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.out: list[Frame | bytes] = []
        self.exit: int | None = None
        self.signal: int | None = None
        self.greeted = False
        self.policies = 0
        self.limits: Limits = self.own_limits
        self.seq = SeqAssigner()
        self.served: dict[MessageId, Served] = {}
        self.sizes = {ECHO: 0, COUNT: 0}
        self.begin()

    # What happens to the process

    def begin(self) -> None:
        """It has just started."""

    def eof(self, *, torn: bool) -> None:
        """Its stdin has ended, inside a frame perhaps."""
        self.exit = 0

    def raw(self, data: bytes) -> None:
        """Bytes have come that are no frame, or not a whole one."""
        if data[:1] != b"\0" or len(data) >= 4 + int.from_bytes(data[:4], "big"):
            self.exit = 1

    def terminate(self) -> None:
        """SIGTERM."""
        self.signal = 15

    def printed(self) -> tuple[int | None, bytes]:
        """What it says to a person who asks for the manifest: exit code and stdout."""
        return 0, json.dumps(self.manifest()).encode()

    # Frames out

    def send(self, *frames: Frame) -> None:
        for frame in frames:
            self.seq.assign(frame)
            self.out.append(frame)

    # Frames in

    def take(self, view: FrameView) -> None:
        if not self.greeted:
            self.greeted = True
            self.limits = self.own_limits.negotiate(read_hello(view))
            self.hello()
        elif view.type is FrameType.HELLO:
            self.second_hello(view)
        elif view.type is FrameType.HEARTBEAT:
            self.heartbeat(view)
        elif view.type is FrameType.POLICY:
            self.policies += 1
        elif view.type in (FrameType.RELAY_NOTIFY, FrameType.RELAY_STATE):
            self.relay_frame()
        elif view.type is FrameType.REQ:
            self.request(view)
        elif (served := self.served.get(view.id)) is not None:
            try:
                self.body(served, view)
            except ProtocolError as error:
                self.fail(served, Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, str(error)))
        else:
            self.stray(view)

    def hello(self) -> None:
        manifest = json.dumps(self.manifest()).encode()
        self.send(hello_frame(self.answered_limits(), manifest=manifest, pools=self.hello_pools()))

    def answered_limits(self) -> Limits:
        return self.limits

    def manifest(self) -> dict[str, Any]:
        return {
            "name": "plain", "version": "1", "channel": "release", "registry_url": None, "description": "",
            "cap_groups": [
                {"name": "plain", "caps": [identity_cap(), cap_object(ECHO), cap_object(COUNT, is_sequence=True)]}
            ],
        }  # fmt: skip

    def second_hello(self, view: FrameView) -> None:
        self.send(err_frame(view.id, Failure("PROTOCOL_ERROR", AttributionClass.INTERNAL, "a second HELLO")))

    def relay_frame(self) -> None:
        self.exit = 1

    def stray(self, view: FrameView) -> None:
        """A frame of no live request."""

    # Pools

    def pools(self) -> dict[str, PoolState]:
        counts = {name: self.count(name) for name in (ECHO, COUNT)}
        pools = {name: PoolState(0, self.sizes[name], *counts[name]) for name in (ECHO, COUNT)}
        totals = [sum(numbers) for numbers in zip(*counts.values(), strict=True)]
        return {IDENTITY_CAP: PoolState(), **pools, ALL_POOL: PoolState(0, 0, *totals)}

    def hello_pools(self) -> dict[str, PoolState]:
        return self.pools()

    def count(self, cap: str) -> tuple[int, int]:
        mine = [one for one in self.served.values() if one.cap == cap]
        queued = sum(one.queued for one in mine)
        return len(mine) - queued, queued

    def heartbeat(self, view: FrameView) -> None:
        desired = view.meta.get("desired_capacities")
        if desired is not None:
            sizes = json.loads(desired)
            if not self.sizes_known(sizes):
                unknown = Failure("UNKNOWN_POOL", AttributionClass.INTERNAL, "no such pool")
                self.send(err_frame(view.id, unknown))
                return
            self.set_sizes(sizes)
        self.reply(view)

    def sizes_known(self, sizes: dict[str, int]) -> bool:
        return sizes.keys() <= self.sizes.keys()

    def set_sizes(self, sizes: dict[str, int]) -> None:
        self.sizes.update(sizes)

    def reply(self, view: FrameView) -> None:
        meta = {"pools": write_pools(self.pools()), "drops_total": 0, "stragglers_total": 0, "overruns_total": 0}
        self.send(Frame(FrameType.HEARTBEAT, view.id, meta=meta))

    # Requests

    def request(self, view: FrameView) -> None:
        refusal = self.refusal(view)
        if refusal is not None:
            self.send(err_frame(view.id, refusal, xid=view.xid))
            return
        served = self.served[view.id] = Served(view, str(self.cap_of(view)), self.limits.initial_credit)
        if self.is_full(served.cap):
            served.queued = True
            self.log(served, LogRecord("queued", "position 1", attribution=AttributionClass.INTERNAL))

    def is_full(self, cap: str) -> bool:
        size = self.sizes.get(cap, 0)
        return bool(size) and self.count(cap)[0] > size

    def refusal(self, view: FrameView) -> Failure | None:
        asked = view.fields.get(10)
        if asked is None:
            return self.no_cap()
        if view.id in self.served:
            return Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, "this RID is live")
        if view.payload_size:
            return Failure("PROTOCOL_ERROR", AttributionClass.INTERNAL, "a REQ carries no data")
        if self.cap_of(view) is None:
            return self.no_handler()
        if asked != IDENTITY_CAP and not self.policies:
            return Failure("PROTOCOL_VIOLATION", AttributionClass.INTERNAL, "before POLICY")
        return None

    def no_cap(self) -> Failure:
        return Failure("INVALID_REQUEST", AttributionClass.INPUT, "no cap")

    def no_handler(self) -> Failure:
        return Failure("NO_HANDLER", AttributionClass.ENVIRONMENT, "nobody serves it")

    def cap_of(self, view: FrameView) -> str | None:
        asked = view.fields[10]
        if asked == IDENTITY_CAP:
            return IDENTITY_CAP
        found = [cap for cap in (ECHO, COUNT) if CapUrn.parse(cap).is_dispatchable(CapUrn.parse(asked))]
        return found[0] if found else None

    def body(self, served: Served, view: FrameView) -> None:
        kind = view.type
        if kind is FrameType.STREAM_START:
            served.arguments.start(view)
            served.argument = str(view.stream_id)
        elif kind is FrameType.CHUNK:
            self.chunk(served, view)
        elif kind is FrameType.STREAM_END:
            served.arguments.of(view).end(view)
            served.ended = True
        elif kind is FrameType.END:
            served.arguments.check_ended()
            served.body_ended = True
        elif kind is FrameType.ERR:
            self.body_taken_back(served, view)
        elif kind is FrameType.CANCEL:
            self.cancel(served, view)
        elif kind is FrameType.CREDIT:
            self.grant(served, view)
        if served.rid in self.served and not served.queued:
            self.work(served)

    def chunk(self, served: Served, view: FrameView) -> None:
        payload = view.fields[6]
        if served.cap == IDENTITY_CAP:
            served.arguments.of(view).chunk(view)
            served.waiting.append((self.identity(served, payload), None))
        else:
            (value,) = served.arguments.of(view).chunk(view).values
            served.data += value if isinstance(value, bytes) else str(value).encode()
        served.chunks += 1
        served.owed += 1

    def identity(self, served: Served, payload: bytes) -> bytes:
        return payload

    def body_taken_back(self, served: Served, view: FrameView) -> None:
        self.fail(served, failure_of(view.meta))

    def cancel(self, served: Served, view: FrameView) -> None:
        self.fail(served, read_cancel(view.meta).failure())

    def grant(self, served: Served, view: FrameView) -> None:
        served.window.grant(view.fields[19])

    def fail(self, served: Served, failure: Failure) -> None:
        self.send(err_frame(served.rid, failure, xid=served.xid))
        self.forget(served)

    def forget(self, served: Served) -> None:
        self.served.pop(served.rid, None)
        self.admit(served.cap)

    def admit(self, cap: str) -> None:
        size = self.sizes.get(cap, 0)
        for other in [one for one in self.served.values() if one.cap == cap and one.queued]:
            if not size or self.count(cap)[0] < size:
                other.queued = False
                self.dequeued(other)
                self.work(other)

    def dequeued(self, served: Served) -> None:
        self.log(served, LogRecord("dequeued", "its turn", attribution=AttributionClass.INTERNAL))

    def log(self, served: Served, record: LogRecord) -> None:
        self.send(log_frame(served.rid, record, xid=served.xid))

    # The answer

    def work(self, served: Served) -> None:
        """Go on as far as data and credit allow."""
        if served.body_ended and not served.argument:
            self.missing(served)
            return
        if served.cap == ECHO:
            self.echo(served)
        elif served.cap == COUNT and served.body_ended and not served.opened:
            self.count_up(served)
        if served.rid in self.served:
            self.pump(served)

    def missing(self, served: Served) -> None:
        self.fail(served, Failure("INVALID_REQUEST", AttributionClass.INPUT, "the argument is missing"))

    def piece(self) -> int:
        """How many bytes a CHUNK may hold."""
        return min(self.limits.max_chunk, self.limits.max_frame - XID_HEADROOM - _HEADER_ROOM)

    def echo(self, served: Served) -> None:
        if served.argument:
            self.start(served)
        size = self.piece()
        while len(served.data) >= size or (served.ended and served.data):
            data, served.data = served.data[:size], served.data[size:]
            served.waiting.extend((payload, None) for payload in scalar_payloads(self.echoed(served, data), size))

    def echoed(self, served: Served, data: bytes) -> bytes:
        return data

    def count_up(self, served: Served) -> None:
        self.start(served, is_sequence=True)
        self.log(served, LogRecord("progress", "counting", 0.5))
        for number in range(1, int(served.data or b"0") + 1):
            self.item(served, number)

    def item(self, served: Served, number: int) -> None:
        first, *others = item_payloads(number, self.piece())
        served.waiting.append((first, {"index": number}))
        served.waiting.extend((payload, None) for payload in others)

    def start(self, served: Served, *, is_sequence: bool = False) -> None:
        if served.opened:
            return
        served.opened = True
        media = {ECHO: "media:octets", COUNT: "media:list;number"}.get(served.cap, "media:")
        self.flow(served, FrameType.STREAM_START, stream_id="out", media_urn=media, is_sequence=is_sequence)

    def pump(self, served: Served) -> None:
        if served.cap == IDENTITY_CAP and served.argument:
            self.start(served)
        while served.waiting and self.may_send(served):
            payload, meta = served.waiting.popleft()
            self.out_chunk(served, payload, meta)
            served.sent += 1
        if not served.waiting:
            self.pay(served)
            if served.body_ended:
                self.finish(served)

    def may_send(self, served: Served) -> bool:
        return served.window.take()

    def out_chunk(self, served: Served, payload: bytes, meta: dict[str, Any] | None) -> None:
        self.flow(
            served, FrameType.CHUNK, stream_id="out", payload=payload, chunk_index=served.sent,
            checksum=fnv1a_64(payload), meta=meta,
        )  # fmt: skip

    def pay(self, served: Served) -> None:
        """Grant what has been used."""
        if served.owed:
            served.arguments.note_grant(served.argument, served.owed)
            self.out_credit(served, served.owed)
            served.owed = 0

    def out_credit(self, served: Served, credit: int) -> None:
        self.send(credit_frame(served.rid, served.argument, credit, REQUEST, xid=served.xid))

    def finish(self, served: Served) -> None:
        self.stream_end(served)
        self.end(served)
        self.forget(served)

    def stream_end(self, served: Served) -> None:
        self.flow(served, FrameType.STREAM_END, stream_id="out", chunk_count=served.sent)

    def end(self, served: Served) -> None:
        self.send(end_frame(served.rid, xid=served.xid))

    def flow(self, served: Served, kind: FrameType, **fields: Any) -> None:
        self.send(Frame(kind, served.rid, routing_id=served.xid, **fields))
