"""Cartridges without processes, driven by a seed: for thousands of events in virtual time.

They keep the protocol for the most part. What they break, and when they die, the seed says.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from random import Random

import trio

from capdag.errors import AttributionClass
from capdag.host.deaths import ProcessEnd
from capdag.host.handshake import Step
from capdag.host.lifecycle import State
from capdag.host.process import Process
from capdag.host.runtime import HostRuntime
from capdag.wire import (
    DEFAULT_LIMITS,
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    MessageId,
    NetworkPolicy,
    SeqAssigner,
    body_end_frame,
    cancel_frame,
    credit_frame,
    end_frame,
    err_frame,
    log_frame,
    pack,
    policy_frame,
    read_cancel,
    view_of,
)
from capdag.wire.blocks import BlockReader, Parcel
from capdag.wire.manifest import read_manifest
from tests.misbehave import manifest

CAPS = ("cap:a", "cap:b", "cap:c")
"""One for each simulated cartridge; each calls the others."""

NO_LUCK = Failure("HANDLER_ERROR", AttributionClass.INTERNAL, "no luck")


def as_a_link_reads(frames: Sequence[FrameView]) -> list[Parcel]:
    """Return frames as a link over descriptors delivers them."""
    parcels: list[Parcel] = []
    BlockReader(runs=True).feed(b"".join(pack(view, DEFAULT_LIMITS.max_frame) for view in frames), parcels)
    return parcels


class Flow:
    """One direction of a request at the end that sends it. `window` is the credit of a new stream."""

    def __init__(self, rid: MessageId, xid: MessageId | None, window: int) -> None:
        self.rid = rid
        self.xid = xid
        self.window = window
        self.credit: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.open: list[str] = []
        self.ended = False
        self.cancelled: CancelReason | None = None

    def start(self, stream: str) -> Frame:
        self.credit[stream], self.sent[stream] = self.window, 0
        self.open.append(stream)
        return Frame(FrameType.STREAM_START, self.rid, stream_id=stream, media_urn="media:", routing_id=self.xid)

    def chunk(self, stream: str) -> Frame:
        self.credit[stream] -= 1
        self.sent[stream] += 1
        index = self.sent[stream] - 1
        return Frame(
            FrameType.CHUNK,
            self.rid,
            stream_id=stream,
            payload=b"\x00",
            chunk_index=index,
            checksum=1,
            routing_id=self.xid,
        )

    def stop(self, stream: str) -> Frame:
        self.open.remove(stream)
        return Frame(FrameType.STREAM_END, self.rid, stream_id=stream, routing_id=self.xid)


class Grants:
    """What a receiver owes to the senders of its streams, and a check that none sends more than it was granted."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.faults: list[FrameView] = []
        self._left: dict[tuple[MessageId, str], int] = {}
        self._owed: dict[tuple[MessageId, str], list[FrameView]] = {}

    def took(self, view: FrameView) -> None:
        key = (view.id, str(view.stream_id))
        self._left[key] = self._left.get(key, self.window) - 1
        if self._left[key] < 0:
            self.faults.append(view)
        self._owed.setdefault(key, []).append(view)

    def some(self, random: Random, share: float) -> Iterator[tuple[FrameView, int]]:
        """Yield the last CHUNK and the grant that is due, for about `share` of the streams."""
        for key, owed in list(self._owed.items()):
            if random.random() < share:
                del self._owed[key]
                self._left[key] += len(owed)
                yield owed[-1], len(owed)


class Child:
    """Stands for the process, which can be killed."""

    def __init__(self, over: trio.Event) -> None:
        self.over = over

    def kill_group(self, sig: signal.Signals) -> None:
        assert sig is signal.SIGKILL
        self.over.set()


class SimulatedProcess(Process):
    """A process that a seed drives. `misdeeds` is the chance of one at each step; `calm`: it only comes to ends."""

    random: Random
    host: HostRuntime
    misdeeds = 0.0
    caps: list[str]
    all_grants: list[Grants]
    calm = False

    async def run(self) -> None:
        self.over = trio.Event()
        self._child = Child(self.over)  # type: ignore[assignment]
        self.status = "was killed by SIGKILL"
        self.answers: dict[tuple[MessageId, MessageId | None], Flow] = {}
        self.calls: dict[MessageId, Flow] = {}
        self.called: set[MessageId] = set()
        self.seq = SeqAssigner()
        self.window = self.random.choice([2, 5, 32])
        self.grants = Grants(self.window)
        self.all_grants.append(self.grants)
        self.handshake.limits = self.handshake.limits._replace(initial_credit=self.window)
        try:
            await self._live()
        finally:
            self._end(ProcessEnd(self.cartridge.id, self.status, killed_for=self._killed_for))

    async def _live(self) -> None:
        await trio.sleep(self.random.random() / 50)
        if not self.calm and self.random.random() < self.misdeeds * 4:
            self.status = "exited with status 1"
            return
        self.handshake.manifest = read_manifest(json.dumps(manifest("m", self.caps)).encode())
        self.handshake.step = Step.DONE
        if self.cartridge.state is State.STARTING:
            self.host._turn(lambda: self.host._ready(self))
        while not self.over.is_set() and not self.was_stopped:
            with trio.move_on_after(self.random.random() / 100):
                await self.over.wait()
            if not self.over.is_set() and not self.was_stopped:
                self._step()

    def _step(self) -> None:
        if self._killed_for is None and trio.current_time() >= self._keeper.due(self.cartridge):
            self._keeper.check(self.cartridge)
        if self.over.is_set():
            return
        if not self.calm and self.random.random() < self.misdeeds:
            self._misbehave()
            return
        for view, owed in self.grants.some(self.random, 1 if self.calm else 0.3):
            direction, xid = (RESPONSE, None) if view.id in self.called else (REQUEST, view.xid)
            self.say(credit_frame(view.id, str(view.stream_id), owed, direction, xid=xid))
        for _ in range(self.random.randrange(4)):
            flows = [*self.answers.values(), *self.calls.values()]
            if flows:
                self._advance(self.random.choice(flows))

    def _misbehave(self) -> None:
        answers = list(self.answers.values())
        match self.random.randrange(7):
            case 0:
                self.status = "exited with status 9"
                self.over.set()
            case 1:
                self.say(Frame(FrameType.END, b"a stranger's id!", routing_id=77))
            case 2:
                self.say(policy_frame(NetworkPolicy.FULL))
            case 3 if answers:
                flow = self.random.choice(answers)
                self.say(*([flow.start("greedy")] if "greedy" not in flow.credit else []))
                self.say(*(flow.chunk("greedy") for _ in range(33)))
            case 4 if self.calls:
                flow = self.random.choice(list(self.calls.values()))
                if not flow.ended:
                    self.say(*([flow.start("greedy")] if "greedy" not in flow.credit else []))
                    self.say(*(flow.chunk("greedy") for _ in range(33)))
            case 5 if answers:
                flow = self.random.choice(answers)
                self.finish(flow)
                self.say_as_is(end_frame(flow.rid, xid=flow.xid))
            case 6 if self.calls:
                rid = self.random.choice(list(self.calls))
                self.say_as_is(Frame(FrameType.REQ, rid, cap="cap:good"))

    def _advance(self, flow: Flow) -> None:
        is_call = flow.rid in self.calls and self.calls[flow.rid] is flow
        if flow.ended:
            if is_call and self.random.random() < 0.1:
                self.say(cancel_frame(flow.rid, CancelReason()))
            return
        if flow.cancelled is not None and (self.calm or self.random.random() < 0.3):
            self.finish(flow, flow.cancelled.failure())
            return
        ready = [stream for stream in flow.open if flow.credit[stream] > 0]
        choice = self.random.random()
        if choice < 0.2 and len(flow.credit) < 4:
            self.say(flow.start(f"{'body' if is_call else 'out'}{len(flow.credit)}"))
        elif choice < 0.6 and ready:
            self.say(*(flow.chunk(ready[0]) for _ in range(self.random.randint(1, flow.credit[ready[0]]))))
        elif choice < 0.75 and flow.open:
            self.say(flow.stop(self.random.choice(flow.open)))
        elif choice < 0.8 and not is_call:
            self.say(log_frame(flow.rid, LogRecord("progress", "on", 0.5), xid=flow.xid))
        elif choice < 0.87 and not is_call and not self.calm:
            self._call(flow)
        elif choice > 0.93:
            self._end_of(flow, is_call)

    def _end_of(self, flow: Flow, is_call: bool) -> None:
        if is_call:
            flow.ended = True
            self.say(body_end_frame(flow.rid) if self.random.random() < 0.9 else err_frame(flow.rid, NO_LUCK))
        else:
            self.finish(flow, NO_LUCK if self.random.random() < 0.2 else None)

    def finish(self, flow: Flow, failure: Failure | None = None) -> None:
        self.answers.pop((flow.rid, flow.xid), None)
        flow.ended = True
        if failure is not None:
            self.say(err_frame(flow.rid, failure, xid=flow.xid))
        else:
            self.say(end_frame(flow.rid, xid=flow.xid))

    def _call(self, parent: Flow) -> None:
        rid = self.random.randbytes(16)
        self.calls[rid] = Flow(rid, None, self.window)
        self.called.add(rid)
        others = [cap for cap in (*CAPS, "cap:effect=none", "cap:nobody") if cap not in self.caps]
        cap = self.random.choice(others)
        meta = {"parent_rid": parent.rid} if self.random.random() < 0.8 else None
        self.say(Frame(FrameType.REQ, rid, cap=cap, payload=b"", meta=meta))

    # What comes from the host

    bytes_queued = 0  # type: ignore[assignment]

    def send(self, batch: list[FrameView]) -> None:  # type: ignore[override]
        out: list[Frame] = []
        for view in batch:
            self._hear(view, out)
        if out:
            self.say(*out)

    def _hear(self, view: FrameView, out: list[Frame]) -> None:
        answer, call = self.answers.get((view.id, view.xid)), self.calls.get(view.id)
        flow = answer or call
        if view.type is FrameType.HEARTBEAT:
            out.append(Frame(FrameType.HEARTBEAT, view.id))
        elif view.type is FrameType.REQ:
            self.answers[view.id, view.xid] = Flow(view.id, view.xid, self.window)
        elif view.type is FrameType.CREDIT and flow is not None and view.stream_id in flow.credit:
            flow.credit[view.stream_id] = min(self.window, flow.credit[view.stream_id] + view.fields[19])
        elif view.type is FrameType.CANCEL and answer is not None:
            answer.cancelled = read_cancel(view.meta)
        elif view.type is FrameType.CHUNK:
            self.grants.took(view)
        elif view.type in TERMINAL_TYPES and call is not None:
            del self.calls[view.id]

    def say(self, *frames: Frame) -> None:
        self.say_as_is(*[frame for frame in frames if self.seq.assign(frame)])

    def say_as_is(self, *frames: Frame) -> None:
        if frames and not self.over.is_set():
            self._keeper.received(self, as_a_link_reads([view_of(frame) for frame in frames]))
