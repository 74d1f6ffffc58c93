"""The switch's table under any order of events: one terminal for each requester, and nothing left."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from capdag.errors import RequestFailedError
from capdag.relay import Request, Switch, SwitchSettings
from capdag.transport import LocalLink, local_link_pair
from capdag.wire import (
    DEFAULT_LIMITS,
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    CancelReason,
    Frame,
    FrameType,
    FrameView,
    NetworkPolicy,
    cancel_frame,
    credit_frame,
    err_frame,
    fnv1a_64,
    policy_frame,
    view_of,
)
from capdag.wire.notify import notify_frame
from tests.relay.masters import IDENTITY, Answer, body, install

A_ONLY, B_ONLY, BOTH = "cap:a;out=media:x", "cap:b;out=media:x", "cap:both;out=media:x"
CAPS = {"a": (A_ONLY, BOTH), "b": (B_ONLY, BOTH)}
WINDOWS = {"a": 3, "b": 6}
TABLE_LIMIT = 12
NAMES = st.sampled_from(["a", "b"])
STREAMS = st.sampled_from(["s", "t"])
CAP = st.sampled_from([A_ONLY, B_ONLY, BOTH])
NUMBER = st.integers(0, 40)


class Peer:
    """A host that keeps what comes and counts the terminals of its own calls."""

    def __init__(self, link: LocalLink, name: str) -> None:
        self.link = link
        self.name = name
        self.alive = True
        self.served: list[tuple[bytes | int, object]] = []
        self.calls: Counter[object] = Counter()
        self.ended: Counter[object] = Counter()

    def deliver(self, batch: Sequence[FrameView]) -> None:
        for view in batch:
            if view.type is FrameType.REQ and view.fields[10] == IDENTITY:
                answer = Answer(view.id, view.xid)
                self._check = answer
            elif view.type is FrameType.CHUNK and view.stream_id and view.stream_id.startswith("identity"):
                answer = self._check
                self.send(answer.start(), answer.chunk(view.fields[6]), answer.stream_end(), answer.end())
            elif view.type is FrameType.REQ:
                self.served.append((view.id, view.xid))
            elif view.type in TERMINAL_TYPES and self._is_for_caller(view):
                self.ended[view.id] += 1

    def _is_for_caller(self, view: FrameView) -> bool:
        """A call to itself has body ERRs too: they carry an XID, as answers do, and the class of a cancel."""
        return view.id in self.calls and (view.id, view.xid) not in self.served

    def closed(self, reason: str) -> None:
        self.alive = False

    def send(self, *frames: Frame) -> None:
        self.link.send([view_of(frame) for frame in frames])


class Recorder:
    """A caller that keeps what is delivered."""

    def __init__(self) -> None:
        self.types: list[FrameType] = []

    def __call__(self, batch: list[FrameView]) -> None:
        self.types += [view.type for view in batch]

    @property
    def terminals(self) -> int:
        return sum(kind in TERMINAL_TYPES for kind in self.types)


class Errors(logging.Handler):
    """Keeps what the switch logs as an error: a turn that raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.getMessage()} {record.exc_info}")


class SwitchMachine(RuleBasedStateMachine):
    """Two hosts and any number of callers do anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.errors = Errors()
        logging.getLogger("capdag").addHandler(self.errors)
        limits = DEFAULT_LIMITS._replace(initial_credit=4)
        settings = SwitchSettings(limits=limits, table_limit=TABLE_LIMIT, max_queued=4, queue_timeout=90.0)
        self.switch = Switch(settings, lambda: self.now)
        self.peers: dict[str, Peer] = {}
        self.old: list[Peer] = []
        self.callers: list[tuple[Request, Recorder]] = []
        self.refused: Counter[str] = Counter()
        self.forgotten: list[Recorder] = []
        self.calls = 0
        for name in ("a", "b"):
            self._attach(name)

    def _attach(self, name: str) -> None:
        near, far = local_link_pair(name)
        peer = self.peers[name] = Peer(far, name)
        far.connect(peer)
        near.connect(self.switch.attach(near, name))
        self._notify(name, CAPS[name])

    def _notify(self, name: str, caps: Sequence[str], size: int = 2, running: bool = True) -> None:
        limits = DEFAULT_LIMITS._replace(initial_credit=WINDOWS[name], max_frame=400)
        record = install(*caps)
        pools = {pool: {**state, "configured": size} for pool, state in record["runtime_stats"]["pools"].items()}
        record["runtime_stats"] = {"running": running, "pools": pools}
        self.peers[name].send(notify_frame(limits, [record] if caps else []))

    def _id(self, peer: Peer, pick: int) -> tuple[Any, Any]:
        """An id the host has seen, or one of a call it made, or one of nobody."""
        ids = [*peer.served, *((rid, None) for rid in peer.calls), (b"nobody's request", 99)]
        return ids[pick % len(ids)]

    # Callers

    @rule(cap=CAP, preferred=st.none() | CAP | NAMES, caller=st.sampled_from(["x", "y"]))
    def open(self, cap: str, preferred: str | None, caller: str) -> None:
        recorder = Recorder()
        try:
            request = self.switch.open_request(cap, recorder, preferred, caller=caller)
        except RequestFailedError as error:
            self.refused[error.code] += 1
            self.forgotten.append(recorder)
        else:
            self.callers.append((request, recorder))

    @precondition(lambda self: self.callers)
    @rule(pick=NUMBER, frames=st.integers(1, 9), stream=STREAMS)
    def send_body(self, pick: int, frames: int, stream: str) -> None:
        request, _ = self.callers[pick % len(self.callers)]
        if not request.waiting:
            request.send(body(request.rid, *([b"\x40"] * 5), stream_id=stream)[:frames])

    @precondition(lambda self: self.callers)
    @rule(pick=NUMBER, credit=NUMBER, stream=STREAMS)
    def grant(self, pick: int, credit: int, stream: str) -> None:
        request, _ = self.callers[pick % len(self.callers)]
        if not request.waiting:
            request.send([credit_frame(request.rid, stream, credit, RESPONSE)])

    @precondition(lambda self: self.callers)
    @rule(pick=NUMBER, force_kill=st.booleans())
    def cancel(self, pick: int, force_kill: bool) -> None:
        self.callers[pick % len(self.callers)][0].cancel(force_kill=force_kill)

    # Hosts

    @rule(name=NAMES, pick=NUMBER, stream=STREAMS, start=st.booleans(), chunks=st.integers(0, 8), end=st.booleans())
    def answer(self, name: str, pick: int, stream: str, start: bool, chunks: int, end: bool) -> None:
        peer = self.peers[name]
        rid, xid = self._id(peer, pick)
        answer = Answer(rid, xid, stream)
        frames = [answer.start()] * start + answer.chunks(chunks) + [answer.stream_end(), answer.end()] * end
        peer.send(*frames)

    @rule(
        name=NAMES, pick=NUMBER, with_xid=st.booleans(), direction=st.sampled_from([REQUEST, RESPONSE, "x"]),
        credit=NUMBER, stream=STREAMS,
    )  # fmt: skip
    def host_grants(self, name: str, pick: int, with_xid: bool, direction: str, credit: int, stream: str) -> None:
        peer = self.peers[name]
        rid, xid = self._id(peer, pick)
        frame = credit_frame(rid, stream, credit, REQUEST, xid=xid if with_xid else None)
        frame.meta = {"credit_dir": direction}
        peer.send(frame)

    @rule(
        name=NAMES, pick=NUMBER, with_xid=st.booleans(),
        kind=st.sampled_from(["err", "end", "log", "cancel", "kill", "close", "heartbeat", "long"]),
    )  # fmt: skip
    def host_sends(self, name: str, pick: int, with_xid: bool, kind: str) -> None:
        peer = self.peers[name]
        rid, xid = self._id(peer, pick)
        xid = xid if with_xid else None
        payload = b"x" * 500
        frames = {
            "err": err_frame(rid, CancelReason().failure(), xid=xid),
            "end": Answer(rid, xid).end(),
            "log": Answer(rid, xid).progress(0.5),
            "cancel": cancel_frame(rid, CancelReason(), xid=xid),
            "kill": cancel_frame(rid, CancelReason(), xid=xid, force_kill=True),
            "close": Frame(FrameType.CLOSE_STREAM, rid, routing_id=xid),
            "heartbeat": Frame(FrameType.HEARTBEAT, rid),
            "long": Frame(FrameType.CHUNK, rid, routing_id=xid, payload=payload, chunk_index=0, checksum=fnv1a_64(b"")),
        }
        peer.send(frames[kind])

    @rule(name=NAMES, cap=CAP, parent=st.none() | NUMBER, whole=st.booleans())
    def host_calls(self, name: str, cap: str, parent: int | None, whole: bool) -> None:
        peer = self.peers[name]
        self.calls += 1
        rid = b"call" + self.calls.to_bytes(12, "big")
        meta = {} if parent is None else {"parent_rid": self._id(peer, parent)[0]}
        peer.calls[rid] += 1
        req = Frame(FrameType.REQ, rid, cap=cap, content_type="application/cbor", payload=b"", meta=meta or None)
        peer.send(req, *(body(rid, b"\x40") if whole else []))

    @rule(name=NAMES, pick=NUMBER, cap=CAP)
    def host_calls_again(self, name: str, pick: int, cap: str) -> None:
        """The same id twice: the second use costs the first, or is refused."""
        peer = self.peers[name]
        rid, _ = self._id(peer, pick)
        if rid in peer.calls:
            peer.calls[rid] += 1
        peer.send(Frame(FrameType.REQ, rid, cap=cap))

    # Links and time

    @rule(name=NAMES, caps=st.sets(CAP), size=st.integers(0, 3), running=st.booleans())
    def notify(self, name: str, caps: set[str], size: int, running: bool) -> None:
        self._notify(name, sorted(caps), size, running)

    @rule(name=NAMES, how=st.sampled_from(["close", "nonsense", "bad notice"]), again=st.booleans())
    def lose(self, name: str, how: str, again: bool) -> None:
        peer = self.peers[name]
        if how == "close":
            peer.link.close()
        elif how == "nonsense":
            peer.send(policy_frame(NetworkPolicy.FULL))
        else:
            peer.send(Frame(FrameType.RELAY_NOTIFY, 0))
        peer.alive = False
        if again:
            self.old.append(peer)
            self._attach(name)

    @precondition(lambda self: any(not peer.alive for peer in self.peers.values()))
    @rule()
    def come_back(self) -> None:
        for name, peer in list(self.peers.items()):
            if not peer.alive:
                self.old.append(peer)
                self._attach(name)

    @rule(seconds=st.sampled_from([1.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.switch.alarms.ring()

    # What must hold

    @invariant()
    def one_terminal_and_it_is_the_last(self) -> None:
        for _, recorder in self.callers:
            assert recorder.terminals <= 1
            assert not recorder.terminals or recorder.types[-1] in TERMINAL_TYPES
        for peer in (*self.peers.values(), *self.old):
            for rid, ended in peer.ended.items():
                assert ended <= peer.calls[rid], rid

    @invariant()
    def no_turn_has_failed(self) -> None:
        assert self.errors.messages == []
        assert self.refused.keys() <= {"NO_HANDLER", "TABLE_FULL", "QUEUE_FULL"}
        assert all(recorder.types == [] for recorder in self.forgotten)

    @invariant()
    def tables_agree(self) -> None:
        requests = self.switch.snapshot()["requests"]
        active = requests["active"]
        assert len(active) <= TABLE_LIMIT
        assert requests["total_registered"] == len(active) + sum(requests["terminated_by_kind"].values())
        cancelled = sum(row["phase"] == "cancelled" for row in active)
        queue = self.switch._queue
        assert len(self.switch.alarms) == cancelled + len(queue) + len(queue._tellings) + len(queue._outages)
        assert set(queue._tellings) | set(queue._outages) <= set(queue._admission.waiting)
        waiting = sum(not recorder.terminals for _, recorder in self.callers)
        assert waiting == sum(not request.ended for request, _ in self.callers)

    @invariant()
    def slots_are_those_of_live_requests(self) -> None:
        snapshot = self.switch.snapshot()
        hosts = [host["pools"] for host in snapshot["hosts"].values() if host["state"] != "dead"]
        held = sum(pools["cart"]["all"]["active"] for pools in hosts if pools)
        assert held == sum(not row["is_peer"] for row in snapshot["requests"]["active"])
        assert not any(line.room() for line in self.switch._queue._admission.waiting)
        assert snapshot["queue"]["waiting"] == sum(request.waiting for request, _ in self.callers)

    def teardown(self) -> None:
        for peer in self.peers.values():
            peer.link.close()
        self.wait(61.0)
        self.no_turn_has_failed()
        self.one_terminal_and_it_is_the_last()
        assert self.switch.snapshot()["requests"]["active"] == []
        assert len(self.switch.alarms) == 0
        assert all(recorder.terminals == 1 for _, recorder in self.callers)
        logging.getLogger("capdag").removeHandler(self.errors)


SwitchMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSwitchMachine = SwitchMachine.TestCase
