"""The relay's end of a host's link, driven by tests; and hosts set up with it over both kinds of link."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import count
from typing import Any

import pytest
import trio

from capdag.errors import AttributionClass
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.transport import Link, local_link_pair, socket_link
from capdag.transport.guardian import new_run_id, open_guardian
from capdag.wire import (
    RESPONSE,
    TERMINAL_TYPES,
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    MessageId,
    NetworkPolicy,
    body_end_frame,
    cancel_frame,
    credit_frame,
    decode_value,
    encode_value,
    err_frame,
    failure_of,
    fnv1a_64,
    policy_frame,
    view_of,
)
from capdag.wire.notify import Notice, read_notify
from tests.misbehave import CALL, CAP, GOOD, cap_object, command, environment

PATIENCE = 10.0
"""Seconds a test waits for what must come."""

QUICK = HostSettings(
    heartbeat_interval=10,
    heartbeat_timeout=5,
    cancel_grace_idle=0.3,
    cancel_grace_busy=0.6,
    stop_grace=0.4,
    exit_patience=0.1,
    republish_interval=0.2,
    first_pause=0.2,
    handshake_timeout=8,
    identity_timeout=8,
)


class Call:
    """One request of the test: the frames of its answer as they came."""

    def __init__(self, relay: Relay, cap: str, xid: MessageId | None) -> None:
        self.relay = relay
        self.xid = xid
        self.rid: MessageId = next(relay.rids).to_bytes(16, "big")
        self.frames: list[FrameView] = []
        self.grants = True
        relay.calls[self.xid, self.rid] = self
        relay.send(
            Frame(FrameType.REQ, self.rid, cap=cap, content_type="application/cbor", payload=b"", routing_id=self.xid)
        )

    def start(self, stream: str = "arg") -> None:
        self.relay.send(
            Frame(FrameType.STREAM_START, self.rid, stream_id=stream, media_urn="media:octets", routing_id=self.xid)
        )

    def chunk(self, data: bytes, index: int = 0, stream: str = "arg") -> None:
        payload = encode_value(data)
        self.relay.send(
            Frame(
                FrameType.CHUNK,
                self.rid,
                stream_id=stream,
                payload=payload,
                chunk_index=index,
                checksum=fnv1a_64(payload),
                routing_id=self.xid,
            )
        )

    def finish(self, count: int, stream: str = "arg") -> None:
        self.relay.send(
            Frame(FrameType.STREAM_END, self.rid, stream_id=stream, chunk_count=count, routing_id=self.xid),
            body_end_frame(self.rid, xid=self.xid),
        )

    def body(self, *pieces: bytes) -> Call:
        """Send one argument stream with these pieces, and the end."""
        self.start()
        for index, piece in enumerate(pieces):
            self.chunk(piece, index)
        self.finish(len(pieces))
        return self

    def cancel(self, reason: CancelReason | None = None, *, force_kill: bool = False) -> None:
        self.relay.send(cancel_frame(self.rid, reason or CancelReason(), xid=self.xid, force_kill=force_kill))

    def abort(self, code: str, message: str) -> None:
        """End the body with an ERR."""
        self.relay.send(err_frame(self.rid, Failure(code, AttributionClass.INTERNAL, message), xid=self.xid))

    def close_stream(self, stream: str) -> None:
        self.relay.send(Frame(FrameType.CLOSE_STREAM, self.rid, stream_id=stream, routing_id=self.xid))

    def took(self, view: FrameView) -> None:
        self.frames.append(view)
        if view.type is FrameType.CHUNK and self.grants:
            self.grant(str(view.stream_id))

    def grant(self, stream: str, credit: int = 1) -> None:
        self.relay.send(credit_frame(self.rid, stream, credit, RESPONSE, xid=self.xid))

    def of(self, kind: FrameType) -> list[FrameView]:
        return [view for view in self.frames if view.type is kind]

    @property
    def terminals(self) -> list[FrameView]:
        return [view for view in self.frames if view.type in TERMINAL_TYPES]

    @property
    def answer(self) -> bytes:
        return b"".join(decode_value(view.fields[6]) for view in self.of(FrameType.CHUNK))

    async def ended(self) -> FrameView:
        """Wait for the terminal."""
        await self.relay.until(lambda: bool(self.terminals))
        return self.terminals[0]

    async def succeeded(self) -> bytes:
        """Wait for a success and return the answer's bytes."""
        end = await self.ended()
        assert end.type is FrameType.END, dict(end.meta)
        return self.answer

    async def failed(self, code: str) -> str:
        """Wait for an ERR with this code and the request's XID; return its message, and the stderr it quotes."""
        end = await self.ended()
        assert end.type is FrameType.ERR, end
        failure = failure_of(end.meta)
        assert failure.code == code, failure
        assert end.xid == self.xid
        return "\n".join([failure.message, *filter(None, [(failure.detail or {}).get("stderr")])])


class Relay:
    """The far end of the host's link. It loops calls of cartridges back to the host, as a switch with one host does."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.rids: Iterator[int] = count(1)
        self.xids: Iterator[int] = count(1)
        self.calls: dict[tuple[MessageId | None, MessageId], Call] = {}
        self.looped: dict[MessageId, int] = {}
        self.loops = True
        self.loose: list[FrameView] = []
        self.notices: list[Notice] = []
        self.first: FrameView | None = None
        self.closed_reason: str | None = None
        self._news = trio.Event()

    def send(self, *frames: Frame) -> None:
        self.link.send([view_of(frame) for frame in frames])

    def deliver(self, batch: Sequence[FrameView]) -> None:
        for view in batch:
            self.first = self.first or view
            if view.type is FrameType.RELAY_NOTIFY:
                self.notices.append(read_notify(view))
            else:
                self._take(view)
        self._news.set()

    def _take(self, view: FrameView) -> None:
        call = self.calls.get((view.xid, view.id))
        if call is not None:
            call.took(view)
        elif self.loops and view.type is FrameType.REQ:
            self.looped[view.id] = 1_000 + next(self.xids)
            self._loop(view)
        elif self.loops and view.id in self.looped:
            self._loop(view)
        else:
            self.loose.append(view)

    def _loop(self, view: FrameView) -> None:
        frame = view.frame()
        frame.routing_id, frame.raw = self.looped[view.id], None
        is_answer = view.xid is not None
        if is_answer and view.type in TERMINAL_TYPES:
            del self.looped[view.id]
        self.send(frame)

    def closed(self, reason: str) -> None:
        self.closed_reason = reason
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds, looking again after every batch and every few milliseconds."""
        with trio.fail_after(PATIENCE):
            while not condition():
                self._news = trio.Event()
                with trio.move_on_after(0.02):
                    await self._news.wait()

    def fail(self, rid: MessageId, xid: MessageId) -> None:
        """End a call that a cartridge made."""
        self.send(err_frame(rid, Failure("HANDLER_ERROR", AttributionClass.INTERNAL, "no luck"), xid=xid))

    def policy(self, policy: NetworkPolicy = NetworkPolicy.NO_TELEMETRY) -> None:
        self.send(policy_frame(policy))

    def call(self, cap: str = CAP) -> Call:
        return Call(self, cap, next(self.xids))

    def call_without_xid(self, cap: str) -> Call:
        return Call(self, cap, None)

    def advertised(self) -> dict[str, dict[str, Any]]:
        """Return the records of the last RELAY_NOTIFY by id."""
        return {install["id"]: dict(install) for install in self.notices[-1].installs}

    def caps(self) -> list[str]:
        """Return the caps of the last RELAY_NOTIFY, in order."""
        return [
            cap["urn"]
            for install in self.notices[-1].installs
            for group in install.get("cap_groups", [])
            for cap in group["caps"]
        ]


class Bench:
    """A running host and the relay's end of its link."""

    def __init__(self, host: HostRuntime, relay: Relay) -> None:
        self.host = host
        self.relay = relay

    def state(self, record_id: str = "cart") -> str:
        return str(self.cartridge(record_id)["state"])

    def cartridge(self, record_id: str = "cart") -> dict[str, Any]:
        return next(c for c in self.host.snapshot()["cartridges"] if c["id"] == record_id)

    @property
    def protocol(self) -> dict[str, Any]:
        protocol: dict[str, Any] = self.host.snapshot()["protocol"]
        return protocol

    def check_empty(self) -> None:
        """Every table is empty and nothing was evicted."""
        protocol = self.protocol
        sizes = ("outgoing_rids", "incoming_rxids", "incoming_to_peer_rids", "outgoing_max_seq")
        assert {name: protocol[name] for name in sizes} == dict.fromkeys(sizes, 0)
        assert protocol["routing_gc_evicted_total"] == 0
        assert self.host.snapshot()["debt"] == 0
        for cartridge in self.host.snapshot()["cartridges"]:
            assert (cartridge["active"], cartridge["waiting"], cartridge["calls"]) == (0, 0, 0), cartridge


def record(
    misdeed: str = "Nothing",
    *arguments: str,
    name: str = "cart",
    caps: Sequence[str] = (CAP, GOOD, CALL),
    called: str = GOOD,
    known: Sequence[str] | None = None,
) -> CartridgeRecord:
    """Return the record of a misbehaving cartridge, which serves `caps`; before its first start `known` are known."""
    before = list(map(cap_object, caps if known is None else known))
    settings = {"caps": list(caps), "called": called}
    return CartridgeRecord(name, command(misdeed, *arguments), before, settings, environment())


@asynccontextmanager
async def bench(
    *records: CartridgeRecord,
    link: str = "local",
    settings: HostSettings = QUICK,
    policy: bool = True,
    guarded: bool = False,
) -> AsyncIterator[Bench]:
    """Run a host with these cartridges; at the end it is shut down, and its tables must be empty.

    `guarded`: with a guardian, as a real host has one.
    """
    guard = open_guardian(new_run_id()) if guarded else nullcontext(None)
    async with guard as guardian, trio.open_nursery() as nursery:
        ours, theirs, pumps = links(link)
        host = HostRuntime(records, theirs, guardian, settings)
        relay = Relay(ours)
        for pump, receiver in zip(pumps, (relay, host.receiver), strict=True):
            pump(receiver, nursery)
        await nursery.start(host.run)
        if policy:
            relay.policy()
        await relay.until(lambda: relay.notices)
        it = Bench(host, relay)
        yield it
        await host.shutdown()
        it.check_empty()
        nursery.cancel_scope.cancel()


def links(kind: str) -> tuple[Link, Link, list[Callable[[Any, trio.Nursery], None]]]:
    if kind == "local":
        ours, theirs = local_link_pair("relay")
        return ours, theirs, [lambda r, _: ours.connect(r), lambda r, _: theirs.connect(r)]
    left, right = socket.socketpair()
    one, other = socket_link(left, "relay"), socket_link(right, "host")
    return one, other, [lambda r, n: n.start_soon(one.run, r), lambda r, n: n.start_soon(other.run, r)]


LINKS = pytest.mark.parametrize("link", ["local", "socket"])
"""Every routing test runs over both kinds of link."""
