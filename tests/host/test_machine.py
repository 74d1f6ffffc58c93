"""The host's tables behind the switch's, under any order of events: one terminal for each request and each call, seq
that only goes up, and nothing left. No tasks and no real time: hypothesis moves everything, and shrinks what fails."""

from __future__ import annotations

import json
import logging
import traceback
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.host.cartridge import Cartridge
from capdag.host.deaths import ProcessEnd
from capdag.host.handshake import Step
from capdag.host.lifecycle import State
from capdag.relay import Request, Switch, SwitchSettings
from capdag.transport import local_link_pair
from capdag.wire import (
    DEFAULT_LIMITS,
    FLOW_TYPES,
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    CancelReason,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    SeqAssigner,
    body_end_frame,
    cancel_frame,
    credit_frame,
    end_frame,
    err_frame,
    log_frame,
)
from capdag.wire.manifest import read_manifest
from tests.host.simulated import CAPS, NO_LUCK, Flow, Grants, SimulatedProcess
from tests.misbehave import manifest

RECORDS = [CartridgeRecord(cap, ["puppet"], [{"urn": cap}]) for cap in CAPS]
WINDOWS = {"cap:a": 2, "cap:b": 5, "cap:c": 32}
NUMBER = st.integers(0, 40)
STEPS = st.sampled_from(["start", "chunk", "chunk", "stop", "end", "err", "log", "cancel"])


class Ledger:
    """H18: the flow frames that one receiver has seen; by flow the last seq, and how often a terminal came."""

    def __init__(self) -> None:
        self.last: dict[object, int] = {}
        self.terminals: Counter[object] = Counter()

    def took(self, view: FrameView, flow: object) -> None:
        if view.type in FLOW_TYPES:
            assert not self.terminals[flow], f"{view} came after the terminal"
            assert view.seq > self.last.get(flow, -1), f"{view} came after {self.last[flow]}"
            self.last[flow] = view.seq
            self.terminals[flow] += view.type in TERMINAL_TYPES


class Puppet(SimulatedProcess):
    """A simulated process that does what it is told and nothing else."""

    def __init__(self, cartridge: Cartridge, host: HostRuntime) -> None:
        super().__init__(cartridge, host, None)
        self.host, self.window = host, WINDOWS[cartridge.id]
        self.answers, self.calls, self.called = {}, {}, set()
        self.given_up: set[object] = set()
        self.seq, self.grants, self.ledger, self.over = SeqAssigner(), Grants(self.window), Ledger(), trio.Event()
        self.handshake.limits = self.handshake.limits._replace(initial_credit=self.window)

    def _kill(self) -> None:
        """It has gone only when it is reaped."""

    @property
    def is_ready(self) -> bool:
        port: object = self.cartridge.port
        return port is self

    @property
    def may_go(self) -> bool:
        return self.was_stopped or self._killed_for is not None

    def become_ready(self) -> None:
        self.handshake.manifest = read_manifest(json.dumps(manifest("m", [self.cartridge.id])).encode())
        self.handshake.step = Step.DONE
        self.host._turn(self.host._ready, self)

    def go(self, status: str = "exited with status 9") -> None:
        """The process is reaped: nothing of it comes any more."""
        self._end(ProcessEnd(self.cartridge.id, status, killed_for=self._killed_for))

    def _hear(self, view: FrameView, out: list[Frame]) -> None:
        is_body = view.type in FLOW_TYPES and ((view.id, view.xid) in self.answers or view.type is FrameType.REQ)
        if view.id not in self.called or is_body:
            self.ledger.took(view, ("body", view.id, view.xid))
        else:
            self.ledger.took(view, ("answer", view.id))
            assert view.id not in self.given_up or view.type in TERMINAL_TYPES or view.type not in FLOW_TYPES
        super()._hear(view, out)

    @property
    def flows(self) -> list[Flow]:
        return [*self.answers.values(), *self.calls.values()]


class Caller:
    """A caller at the switch."""

    def __init__(self, switch: Switch, cap: str) -> None:
        self.ledger = Ledger()
        self.grants = Grants(4)
        self.body: Flow | None = None
        self.request: Request = switch.open_request(cap, self._took, admitted=self._go)

    def _go(self, request: Request) -> None:
        self.body = Flow(request.rid, None, request.limits.initial_credit)

    def _took(self, batch: list[FrameView]) -> None:
        for view in batch:
            if view.meta.get("level") not in ("queued", "dequeued"):  # the switch's own, before the handler's
                self.ledger.took(view, "answer")
            if view.type is FrameType.CHUNK:
                self.grants.took(view)
            elif view.type is FrameType.CREDIT and self.body is not None and view.stream_id in self.body.credit:
                self.body.credit[view.stream_id] += view.fields[19]

    @property
    def terminals(self) -> int:
        return self.ledger.terminals["answer"]


class Errors(logging.Handler):
    """Keeps the turns that raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.failed: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.failed.append("".join(traceback.format_exception(*record.exc_info)))


class HostMachine(RuleBasedStateMachine):
    """A switch with one host of three cartridges, and everybody at the ends of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.made = 0.0, 0
        self.errors = Errors()
        logging.getLogger("capdag").addHandler(self.errors)
        limits = DEFAULT_LIMITS._replace(initial_credit=4)
        self.switch = Switch(SwitchSettings(limits=limits, queue_timeout=90.0), lambda: self.now)
        self.host = HostRuntime(RECORDS, None, None, HostSettings(limits=limits, idle_timeout=40.0))
        self.host._x.clock = lambda: self.now
        self.host._x.launch = self._launch
        self.host._nursery = object()  # type: ignore[assignment]  # it runs; nothing is ever started in there
        self.puppets: list[Puppet] = []
        self.all_puppets: list[Puppet] = []
        self.callers: list[Caller] = []
        self.made_calls: list[tuple[Puppet, bytes]] = []
        self.refused: list[str] = []
        self._attach()

    def _launch(self, cartridge: Cartridge) -> None:
        cartridge.limits, cartridge.muted, cartridge.cancelling = self.host.settings.limits, False, 0
        puppet = Puppet(cartridge, self.host)
        self.host._sessions[cartridge] = puppet
        self.puppets.append(puppet)
        self.all_puppets.append(puppet)

    def _attach(self) -> None:
        self.near, far = local_link_pair("host")
        far.connect(self.host.attach_relay(far))
        self.near.connect(self.switch.attach(self.near, "host"))

    def _some(self, pick: int, things: Sequence[Any]) -> Any:
        return things[pick % len(things)] if things else None

    @initialize(caps=st.sampled_from([(), CAPS, CAPS]))
    def begin(self, caps: Sequence[str]) -> None:
        """Mostly begin with processes that run and have something to do."""
        for cap in caps:
            self.open(cap)
        for puppet in self.puppets:
            puppet.become_ready()

    # Callers

    @rule(cap=st.sampled_from(CAPS))
    def open(self, cap: str) -> None:
        try:
            self.callers.append(Caller(self.switch, cap))
        except RequestFailedError as error:
            self.refused.append(error.code)

    @precondition(lambda self: self.callers)
    @rule(pick=NUMBER, steps=st.lists(STEPS, min_size=1, max_size=5))
    def caller_does(self, pick: int, steps: list[str]) -> None:
        caller = self._some(pick, self.callers)
        for step in steps:
            if step == "cancel":
                caller.request.cancel(force_kill=pick % 5 == 0)
            elif caller.body is not None:
                caller.request.send(self._next(caller.body, step))

    @precondition(lambda self: self.callers)
    @rule(pick=NUMBER)
    def caller_grants(self, pick: int) -> None:
        caller = self._some(pick, self.callers)
        for view, owed in caller.grants.some(Random(pick), 1):
            caller.request.send([credit_frame(view.id, str(view.stream_id), owed, RESPONSE)])

    def _next(self, flow: Flow, step: str, *, is_answer: bool = False) -> list[Frame]:
        """Return the frames of a step that a flow may take now."""
        ready = [stream for stream in flow.open if flow.credit[stream] > 0]
        if flow.ended:
            return []
        if step == "start" and len(flow.credit) < 3:
            return [flow.start(f"{'out' if is_answer else 'arg'}{len(flow.credit)}")]
        if step == "chunk" and ready:
            return [flow.chunk(ready[-1])]
        if step == "stop" and flow.open:
            return [flow.stop(flow.open[0])]
        if step == "log" and is_answer:
            return [log_frame(flow.rid, LogRecord("progress", "on", 0.5), xid=flow.xid)]
        if step in ("end", "err"):
            flow.ended = True
            if step == "err":
                return [err_frame(flow.rid, NO_LUCK, xid=flow.xid)]
            return [end_frame(flow.rid, xid=flow.xid) if is_answer else body_end_frame(flow.rid)]
        return []

    # Cartridges

    @precondition(lambda self: any(puppet.handshake.step is not Step.DONE for puppet in self.puppets))
    @rule(pick=NUMBER, good=st.booleans())
    def starts(self, pick: int, good: bool) -> None:
        waiting = [puppet for puppet in self.puppets if puppet.handshake.step is not Step.DONE]
        puppet = self._some(pick, waiting)
        if good and puppet.cartridge.state is State.STARTING:
            puppet.become_ready()
        elif not good or puppet.may_go:
            self._reap(puppet)

    @precondition(lambda self: any(puppet.flows for puppet in self.puppets))
    @rule(pick=NUMBER, which=NUMBER, steps=st.lists(STEPS, min_size=1, max_size=5))
    def cartridge_does(self, pick: int, which: int, steps: list[str]) -> None:
        puppet = self._some(pick, [puppet for puppet in self.puppets if puppet.flows])
        flow = self._some(which, puppet.flows)
        is_answer = (flow.rid, flow.xid) in puppet.answers and puppet.answers[flow.rid, flow.xid] is flow
        for step in steps:
            if step != "cancel":
                puppet.say(*self._next(flow, step, is_answer=is_answer))
            elif is_answer and flow.cancelled is not None and not flow.ended:
                flow.ended = True
                puppet.say(err_frame(flow.rid, flow.cancelled.failure(), xid=flow.xid))
            elif not is_answer:
                puppet.given_up.add(flow.rid)
                puppet.say(cancel_frame(flow.rid, CancelReason()))
        if is_answer and flow.ended:
            puppet.answers.pop((flow.rid, flow.xid), None)

    @precondition(lambda self: any(puppet.answers for puppet in self.puppets))
    @rule(
        pick=NUMBER, which=NUMBER, cap=st.sampled_from([*CAPS, "cap:effect=none", "cap:nobody"]), named=st.booleans(),
        steps=st.lists(st.sampled_from(["start", "chunk", "stop", "end"]), max_size=4),
    )  # fmt: skip
    def cartridge_calls(self, pick: int, which: int, cap: str, named: bool, steps: list[str]) -> None:
        puppet = self._some(pick, [puppet for puppet in self.puppets if puppet.answers])
        if cap == puppet.cartridge.id:
            return  # both ends of it in one process are for test_calls
        self.made += 1
        rid = b"call" + self.made.to_bytes(12, "big")
        parent = self._some(which, list(puppet.answers.values()))
        puppet.calls[rid] = Flow(rid, None, puppet.window)
        puppet.called.add(rid)
        self.made_calls.append((puppet, rid))
        meta = {"parent_rid": parent.rid} if named else None
        puppet.say(Frame(FrameType.REQ, rid, cap=cap, payload=b"", meta=meta))
        for step in steps:
            if rid in puppet.calls:  # it has not failed yet
                puppet.say(*self._next(puppet.calls[rid], step))

    @precondition(lambda self: any(puppet.is_ready for puppet in self.puppets))
    @rule(pick=NUMBER)
    def cartridge_grants(self, pick: int) -> None:
        puppet = self._some(pick, [puppet for puppet in self.puppets if puppet.is_ready])
        for view, owed in puppet.grants.some(Random(pick), 0.7):
            direction, xid = (RESPONSE, None) if view.id in puppet.called else (REQUEST, view.xid)
            puppet.say(credit_frame(view.id, str(view.stream_id), owed, direction, xid=xid))

    @precondition(lambda self: any(puppet.flows for puppet in self.puppets))
    @rule(pick=NUMBER, which=NUMBER, how=st.sampled_from(["greedy", "twice", "stranger", "again", "deaf"]))
    def cartridge_cheats(self, pick: int, which: int, how: str) -> None:
        puppet = self._some(pick, [puppet for puppet in self.puppets if puppet.flows])
        flow = self._some(which, puppet.flows)
        if how == "greedy" and not flow.ended:
            puppet.say(*([flow.start("greedy")] if "greedy" not in flow.credit else []))
            puppet.say(*(flow.chunk("greedy") for _ in range(puppet.window + 1)))
        elif how == "twice" and flow in puppet.answers.values():
            puppet.finish(flow)
            puppet.say_as_is(end_frame(flow.rid, xid=flow.xid))
        elif how == "stranger":
            puppet.say_as_is(Frame(FrameType.END, b"a stranger's id!", routing_id=77))
        elif how == "again" and puppet.calls:
            puppet.say_as_is(Frame(FrameType.REQ, self._some(which, list(puppet.calls)), cap="cap:b"))
        elif how == "deaf":
            puppet.say_as_is(Frame(FrameType.POLICY, 0, meta={"network": "full"}))

    @precondition(lambda self: self.puppets)
    @rule(pick=NUMBER, crash=st.booleans())
    def cartridge_goes(self, pick: int, crash: bool) -> None:
        puppet = self._some(pick, self.puppets)
        if crash or puppet.may_go:
            self._reap(puppet)

    def _reap(self, puppet: Puppet) -> None:
        self.puppets.remove(puppet)
        puppet.go()
        assert not puppet.cartridge.calls
        assert all(row.queued for row in puppet.cartridge.rows.values())

    # The host

    @rule(seconds=st.sampled_from([0.5, 6.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.switch.alarms.ring()
        for puppet in list(self.puppets):
            if puppet.is_ready and puppet._killed_for is None and self.now >= self.host.due(puppet.cartridge):
                self.host.check(puppet.cartridge)

    @rule(kept=st.lists(st.sampled_from(RECORDS), unique_by=id, min_size=1))
    def sync_roster(self, kept: list[CartridgeRecord]) -> None:
        self.host.sync_roster(kept)

    @rule(cap=st.sampled_from(CAPS))
    def reset(self, cap: str) -> None:
        if cap in self.host._roster.current:
            self.host.reset(cap)

    @rule()
    def lose_the_relay(self) -> None:
        self.near.close()
        self._attach()

    # What must hold

    @invariant()
    def no_turn_has_failed(self) -> None:
        assert self.errors.failed == [], self.errors.failed
        assert set(self.refused) <= {"NO_HANDLER", "QUEUE_FULL"}

    @invariant()
    def tables_agree(self) -> None:
        x = self.host._x
        cartridges = [*self.host._roster, self.host._echo]
        rows = {key for cartridge in cartridges for key in cartridge.rows}
        calls = {rid for cartridge in cartridges for rid in cartridge.calls}
        assert set(x.incoming) == rows
        assert set(x.outgoing) == calls
        assert all(call.cancelled for call in x.outgoing.rows() if call.parent is not None and call.parent.passed)
        assert all(caller.terminals <= 1 for caller in self.callers)
        assert sum(not caller.terminals for caller in self.callers) == sum(
            not row["is_peer"] for row in self.switch.snapshot()["requests"]["active"]
        ) + sum(caller.request.waiting for caller in self.callers)

    def teardown(self) -> None:
        """H24: everybody comes to an end in the usual way; then nothing is left, and everything had one terminal."""
        for caller in self.callers:
            caller.request.cancel()
        for _ in range(4):
            for puppet in list(self.puppets):
                for flow in [flow for flow in puppet.flows if not flow.ended]:
                    flow.ended = True
                    is_answer = (flow.rid, flow.xid) in puppet.answers
                    reason = flow.cancelled or CancelReason()
                    puppet.say(
                        err_frame(flow.rid, reason.failure(), xid=flow.xid) if is_answer else body_end_frame(flow.rid)
                    )
            self.wait(6.0)
        for puppet in list(self.puppets):
            self._reap(puppet)
        for _ in range(3):
            self.wait(31.0)
            for puppet in list(self.puppets):
                self._reap(puppet)
        self.no_turn_has_failed()
        self.tables_agree()
        x = self.host._x
        assert (len(x.incoming), len(x.outgoing), x.debt.owed) == (0, 0, 0)
        for cartridge in self.host._roster:
            assert (cartridge.rows, cartridge.calls, cartridge.waiting, cartridge.cancelling) == ({}, {}, [], 0)
        assert self.switch.snapshot()["requests"]["active"] == []
        assert all(caller.terminals == 1 for caller in self.callers)
        assert not any(caller.grants.faults for caller in self.callers)
        assert not any(puppet.grants.faults for puppet in self.all_puppets)
        for puppet, rid in self.made_calls:
            assert puppet.ledger.terminals["answer", rid] <= 1
        logging.getLogger("capdag").removeHandler(self.errors)


HostMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHostMachine = HostMachine.TestCase


def test_end_of_a_body_that_the_switch_made_does_not_pass_for_the_answer() -> None:
    """H17: the request that a call was made for is cancelled, and the handler of the call has begun to answer it."""
    machine = HostMachine()
    machine.begin(CAPS)
    machine.cartridge_calls(pick=0, which=0, cap="cap:c", named=True, steps=[])
    (caller,) = [puppet for puppet in machine.puppets if puppet.calls]
    (handler,) = [puppet for puppet in machine.puppets if len(puppet.answers) == 2]
    answer = list(handler.answers.values())[-1]
    handler.say(answer.start("one"), answer.start("two"))
    machine.callers[0].request.cancel()
    assert caller.ledger.terminals["answer", answer.rid] == 0
    handler.say(err_frame(answer.rid, NO_LUCK, xid=answer.xid))
    assert caller.ledger.terminals["answer", answer.rid] == 1
    machine.teardown()
