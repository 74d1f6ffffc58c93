"""A scripted host: the switch's peer on a link, driven frame by frame."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import trio

from capdag.relay import Switch
from capdag.transport import Link, local_link_pair, socket_link
from capdag.transport.background import background
from capdag.wire import (
    DEFAULT_LIMITS,
    RESPONSE,
    Frame,
    FrameType,
    FrameView,
    Limits,
    MessageId,
    body_end_frame,
    credit_frame,
    end_frame,
    fnv1a_64,
    view_of,
)
from capdag.wire.notify import notify_frame

ECHO = "cap:echo;in=media:octets;out=media:octets"
UPPER = 'cap:in="media:enc=utf-8";out="media:enc=utf-8";upper'
IDENTITY = "cap:effect=none"

LinkKind = Literal["local", "socket"]

PATIENCE = 5.0
"""Seconds that a frame may take: virtual over local links, real over sockets."""


def install(*caps: str, name: str = "cart", **facts: Any) -> dict[str, Any]:
    """Return one record of installed_cartridges."""
    pool = {"declared": 0, "configured": 0, "active": 0, "queued": 0}
    return {
        "registry_url": None,
        "id": name,
        "channel": "release",
        "version": "1",
        "cap_groups": [{"name": "g", "caps": [{"urn": urn, **facts} for urn in (IDENTITY, *caps)]}],
        "runtime_stats": {"running": True, "pools": dict.fromkeys([IDENTITY, *caps, "all"], pool)},
    }


class Master:
    """The host's end: what the switch sends is in `seen` and taken by `next`; the link's end sets `end_reason`."""

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.end_reason: str | None = None
        self.seen: list[FrameView] = []
        self._taken = 0
        self._news = trio.Event()

    def deliver(self, batch: Sequence[FrameView]) -> None:
        self.seen.extend(batch)
        self._news.set()

    def closed(self, reason: str) -> None:
        self.end_reason = reason
        self._news.set()

    def send(self, *frames: Frame | FrameView) -> None:
        """Send frames as one batch."""
        self.link.send([view_of(frame) if isinstance(frame, Frame) else frame for frame in frames])

    def notify(self, *caps: str, limits: Limits = DEFAULT_LIMITS) -> None:
        """Send a RELAY_NOTIFY with one cartridge of these caps, or with none at all."""
        self.send(notify_frame(limits, [install(*caps)] if caps else []))

    async def _wait(self) -> None:
        self._news = trio.Event()
        with trio.fail_after(PATIENCE):
            await self._news.wait()

    async def next(self, kind: FrameType | None = None) -> FrameView:
        """Return the next frame, which must be of `kind`."""
        while self._taken >= len(self.seen):
            assert self.end_reason is None, f"the link ended: {self.end_reason}"
            await self._wait()
        view = self.seen[self._taken]
        self._taken += 1
        assert kind is None or view.type is kind, f"{view!r} came where {kind!r} was due"
        return view

    async def skip_to(self, kind: FrameType) -> FrameView:
        """Return the next frame of `kind`, passing over others."""
        while True:
            view = await self.next()
            if view.type is kind:
                return view

    def untaken(self) -> list[FrameView]:
        """Return what has come and has not been taken."""
        return self.seen[self._taken :]

    async def wait_closed(self) -> str:
        """Wait for the end of the link and return its reason."""
        while self.end_reason is None:
            await self._wait()
        return self.end_reason

    async def answer_identity(self) -> None:
        """Take an identity request, in either form, and give it back."""
        view = await self.skip_to(FrameType.REQ)
        assert view.fields[10] == IDENTITY
        await self.next(FrameType.STREAM_START)
        chunk = await self.next(FrameType.CHUNK)
        await self.next(FrameType.STREAM_END)
        await self.next(FrameType.END)
        answer = Answer(view.id, view.xid)
        self.send(answer.start(), answer.chunk(chunk.fields[6]), answer.stream_end(), answer.end())

    async def take_request(self) -> Received:
        """Take a whole request with one argument, granting its CHUNKs."""
        req = await self.next(FrameType.REQ)
        payload = b""
        while (view := await self.next()).type is not FrameType.END:
            if view.type is FrameType.CHUNK:
                payload += view.fields[6]
                self.send(credit_frame(req.id, view.stream_id or "", 1, "request", xid=req.xid))
        return Received(req, payload, Answer(req.id, req.xid))


async def until(ready: Callable[[], bool]) -> None:
    """Wait until something that tells nobody has come about."""
    with trio.fail_after(PATIENCE):
        while not ready():  # noqa: ASYNC110
            await trio.sleep(0.001)


class Answer:
    """Builds the frames of a handler's answer, numbered."""

    def __init__(self, rid: MessageId, xid: MessageId | None, stream_id: str = "out-0") -> None:
        self.rid, self.xid, self.stream_id = rid, xid, stream_id
        self.seq = 0
        self.index = 0

    def _frame(self, kind: FrameType, **fields: Any) -> Frame:
        self.seq += 1
        return Frame(kind, self.rid, self.seq - 1, routing_id=self.xid, **fields)

    def start(self, **fields: Any) -> Frame:
        fields = {"media_urn": "media:octets", "is_sequence": False, **fields}
        return self._frame(FrameType.STREAM_START, stream_id=self.stream_id, **fields)

    def chunk(self, payload: bytes, **fields: Any) -> Frame:
        fields = {"chunk_index": self.index, "checksum": fnv1a_64(payload), **fields}
        self.index += 1
        return self._frame(FrameType.CHUNK, stream_id=self.stream_id, payload=payload, **fields)

    def chunks(self, count: int) -> list[Frame]:
        return [self.chunk(bytes((0x18, 100))) for _ in range(count)]

    def stream_end(self) -> Frame:
        return self._frame(FrameType.STREAM_END, stream_id=self.stream_id, chunk_count=self.index)

    def log(self, **meta: Any) -> Frame:
        return self._frame(FrameType.LOG, meta=meta)

    def progress(self, fraction: float, message: str = "working") -> Frame:
        return self.log(level="progress", message=message, progress=fraction)

    def end(self) -> Frame:
        self.seq += 1
        return end_frame(self.rid, xid=self.xid, seq=self.seq - 1)

    def err(self, code: str = "HANDLER_ERROR", attribution: str = "internal", message: str = "it broke") -> Frame:
        return self._frame(FrameType.ERR, meta={"code": code, "attribution_class": attribution, "message": message})

    def grant(self, credit: int) -> Frame:
        """A grant as the requester of this answer sends it."""
        return credit_frame(self.rid, self.stream_id, credit, RESPONSE, xid=self.xid)


class Received(NamedTuple):
    """A request as it came: its REQ, its payload bytes (undecoded), and a builder of its answer."""

    req: FrameView
    payload: bytes
    answer: Answer


@asynccontextmanager
async def connected(switch: Switch, name: str, kind: LinkKind) -> AsyncIterator[Master]:
    """Attach a scripted master over a link of `kind`. It has sent nothing yet."""
    if kind == "local":
        near, far = local_link_pair(name)
        master = Master(far, name)
        far.connect(master)
        near.connect(switch.attach(near, name))
        yield master
        far.close()
        return
    left, right = socket.socketpair()
    here, there = socket_link(left, name), socket_link(right, name)
    master = Master(there, name)
    async with background(partial(here.run, switch.attach(here, name)), partial(there.run, master)):
        yield master
        await there.flushed()
        there.close()


@asynccontextmanager
async def ready(
    switch: Switch, name: str, kind: LinkKind, *caps: str, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[Master]:
    """Attach a scripted master that offers `caps` and has passed the identity check."""
    async with connected(switch, name, kind) as master:
        master.notify(*caps, limits=limits)
        await master.next(FrameType.POLICY)
        await master.answer_identity()
        with trio.fail_after(PATIENCE):
            for cap in caps:
                await switch.wait_for(cap)
        yield master


def record(size: int, *caps: str, running: bool = True, **sizes: int) -> dict[str, Any]:
    """Return a record of a cartridge whose first cap takes `size` requests at once."""
    found = install(*(caps or (ECHO,)))
    pools = {name: dict(state) for name, state in found["runtime_stats"]["pools"].items()}
    for name, bound in {(caps or (ECHO,))[0]: size, **sizes}.items():
        pools[name] |= {"declared": bound, "configured": bound}
    found["runtime_stats"] = {"running": running, "pools": pools}
    return found


def tell(master: Master, *records: dict[str, Any]) -> None:
    """Send a RELAY_NOTIFY with these records."""
    master.send(notify_frame(DEFAULT_LIMITS, list(records)))


@asynccontextmanager
async def bounded(
    switch: Switch, size: int, *caps: str, name: str = "m0", kind: LinkKind = "local", running: bool = True
) -> AsyncIterator[Master]:
    """Attach a scripted host with one cartridge of bounded pools."""
    async with connected(switch, name, kind) as master:
        tell(master, record(size, *caps, running=running))
        await master.answer_identity()
        await until(lambda: switch.snapshot()["hosts"][name]["state"] == "ready")
        yield master


def body(rid: MessageId, *payloads: bytes, stream_id: str = "arg-0") -> list[Frame]:
    """Return the frames of a request's body with one argument; the switch numbers a caller's."""
    chunks = [
        Frame(FrameType.CHUNK, rid, stream_id=stream_id, payload=payload, chunk_index=index, checksum=fnv1a_64(payload))
        for index, payload in enumerate(payloads)
    ]
    return [
        Frame(FrameType.STREAM_START, rid, stream_id=stream_id, media_urn="media:octets", is_sequence=False),
        *chunks,
        Frame(FrameType.STREAM_END, rid, stream_id=stream_id, chunk_count=len(payloads)),
        body_end_frame(rid),
    ]


def peer_call(
    rid: MessageId, *payloads: bytes, cap: str = "cap:echo;in=media:octets;out=media:octets", **meta: Any
) -> list[Frame]:
    """Return a cartridge's own call as its host passes it on: no XID, numbered from 0."""
    req = Frame(FrameType.REQ, rid, cap=cap, content_type="application/cbor", payload=b"", meta=meta or None)
    frames = [req, *body(rid, *payloads)]
    for seq, frame in enumerate(frames):
        frame.seq = seq
    return frames


class Caller:
    """A caller's side of `open_request`: collects what is delivered."""

    def __init__(self) -> None:
        self.views: list[FrameView] = []
        self.batches: list[list[FrameView]] = []
        self._news = trio.Event()

    def __call__(self, batch: list[FrameView]) -> None:
        self.views.extend(batch)
        self.batches.append(batch)
        self._news.set()

    @property
    def types(self) -> list[FrameType]:
        return [view.type for view in self.views]

    @property
    def terminals(self) -> list[FrameView]:
        return [view for view in self.views if view.type in (FrameType.END, FrameType.ERR)]

    async def until(self, count: int) -> list[FrameView]:
        """Wait until `count` frames have come."""
        with trio.fail_after(PATIENCE):
            while len(self.views) < count:
                self._news = trio.Event()
                await self._news.wait()
        return self.views

    async def terminal(self) -> FrameView:
        """Wait for the terminal and check that it is the one and the last."""
        with trio.fail_after(100 * PATIENCE):
            while not self.terminals:
                self._news = trio.Event()
                await self._news.wait()
        assert len(self.terminals) == 1
        assert self.views[-1] is self.terminals[0]
        return self.terminals[0]
