"""What each frame from the host means, once HELLO has been exchanged. Runs on the main thread and never waits.

`_lock` guards the table of jobs, the pools and the counts, which workers change when a job ends. Nothing is written
to the pipe under it: posting only appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Protocol

from capdag.errors import AttributionClass, ProtocolError, RemoteProtocolError
from capdag.urn import CapTable
from capdag.wire import (
    IDENTITY_CAP,
    REQUEST,
    RESPONSE,
    CancelReason,
    Failure,
    Frame,
    FrameCounts,
    FrameType,
    FrameView,
    Limits,
    LogRecord,
    MessageId,
    NetworkPolicy,
    ReleasedRing,
    err_frame,
    failure_of,
    log_frame,
    read_cancel,
    read_policy,
    show_id,
    write_pools,
)
from capdag.wire.heartbeats import is_reply

from ._admission import Admission
from ._call_core import CallCore, reason_of
from ._calls import CallTable
from ._errors import LONGEST_TEXT, CartridgeError, RelayFrameError
from ._job import Job
from ._served import ServedCap
from ._writer import Flow, FrameWriter


class Shell(Protocol):
    """What runs handlers: threads, or tasks and threads."""

    @property
    def overruns(self) -> int:
        """Items of live feeds that were lost."""

    def job(self, cap: ServedCap, asked: str, flow: Flow, limits: Limits) -> Job:
        """Make the job of a request that is accepted."""

    def start(self, job: Job, session: Session, *, queued: bool) -> None:
        """Start a job's handler, from any thread; when the outcome is decided, `session.settle` is called."""

    def stopped(self, job: Job, session: Session) -> None:
        """Tell a job's handler that it was stopped. On the main thread."""


class Session:
    """The requests of one cartridge and their rules. `on_policy` hears every POLICY."""

    def __init__(
        self,
        caps: Iterable[ServedCap],
        admission: Admission,
        limits: Limits,
        writer: FrameWriter,
        shell: Shell,
        on_policy: Callable[[NetworkPolicy], None],
    ) -> None:
        self._table: CapTable[str] = CapTable()
        self._caps: dict[str, ServedCap] = {}
        for cap in caps:
            self._table.register(cap.urn, cap.text)
            self._caps[cap.text] = cap
        self._admission = admission
        self._limits = limits
        self._writer = writer
        self._shell = shell
        self._on_policy = on_policy
        self._policy_known = False
        self._lock = Lock()
        self._jobs: dict[MessageId, Job] = {}
        self._released = ReleasedRing()
        self._counts = FrameCounts(self._released)
        self.calls = CallTable(self._lock, self._released, writer)
        self._takers: Mapping[FrameType, Callable[[FrameView], None]] = {
            FrameType.HELLO: self._on_hello,
            FrameType.REQ: self._on_req,
            FrameType.STREAM_START: self._on_stream,
            FrameType.CHUNK: self._on_stream,
            FrameType.STREAM_END: self._on_stream,
            FrameType.END: self._on_end,
            FrameType.ERR: self._on_err,
            FrameType.CREDIT: self._on_credit,
            FrameType.CANCEL: self._on_cancel,
            FrameType.HEARTBEAT: self._on_heartbeat,
            FrameType.POLICY: self._take_policy,
            FrameType.RELAY_NOTIFY: self._on_relay,
            FrameType.RELAY_STATE: self._on_relay,
            FrameType.LOG: self._on_log,
            FrameType.CLOSE_STREAM: self._on_close_stream,
        }

    def take(self, view: FrameView) -> None:
        """Take one frame. Raises RelayFrameError for RELAY_*; whatever else is wrong costs its own request."""
        self._takers[view.type](view)

    def stop_all(self, reason: CancelReason) -> None:
        """Stop every request."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._cancel(job, reason)

    def _on_hello(self, view: FrameView) -> None:
        failure = Failure("PROTOCOL_ERROR", AttributionClass.INTERNAL, "a second HELLO: the handshake is over")
        self._writer.post(err_frame(view.id, failure))

    def _on_relay(self, view: FrameView) -> None:
        raise RelayFrameError(f"{view.type.name} came on stdin: a cartridge is a host's child, not a relay")

    def _take_policy(self, view: FrameView) -> None:
        self._policy_known = True
        self._on_policy(read_policy(view.meta))

    def _on_req(self, view: FrameView) -> None:
        flow = Flow(view.id, view.xid)
        live = self._jobs.get(view.id)
        if live is not None and live.flow.xid == view.xid:
            with self._lock:
                self._counts.drop(view, "protocol_violation")  # an ERR for it would end the first (L15)
            return
        try:
            cap = self._accept(view)
        except CartridgeError as refusal:
            with self._lock:
                self._released.add(view.id)
            self._writer.post(err_frame(view.id, _failure(refusal), xid=view.xid), flow, terminal=True)
            return
        job = self._shell.job(cap, view.fields[10], flow, self._limits)
        call = self.calls.find(view.id)
        if call is not None:
            call.came_back = True
        with self._lock:
            self._released.discard(view.id)
            self._jobs[view.id] = job
            position = self._admission.enter(job)
            if position:
                message = f"the request is queued at position {position} on pool {cap.text[:LONGEST_TEXT]!r}"
                self._writer.post(log_frame(view.id, LogRecord("queued", message), xid=view.xid), flow)
        if not position:
            self._start(job)

    def _accept(self, view: FrameView) -> ServedCap:
        """Return the cap that serves a REQ. Raises CartridgeError saying why none does."""
        asked = view.fields.get(10)
        if not asked:
            raise CartridgeError("INVALID_REQUEST", "the REQ has no cap: key 10 must name one", AttributionClass.INPUT)
        if view.payload_size:
            raise CartridgeError("PROTOCOL_ERROR", "a REQ has an empty payload: arguments go in streams of their own")
        if view.id in self._jobs:
            raise CartridgeError("PROTOCOL_VIOLATION", f"request {show_id(view.id)} is live already")
        cap = self._caps.get(asked) or self._caps.get(self._table.best_match(asked) or "")
        if cap is None:
            raise CartridgeError(
                "NO_HANDLER", f"no handler for cap {asked[:LONGEST_TEXT]!r}", AttributionClass.ENVIRONMENT
            )
        if not self._policy_known and cap.text != IDENTITY_CAP:
            raise CartridgeError("PROTOCOL_VIOLATION", "a REQ came before POLICY")
        return cap

    def _start(self, job: Job, queued: bool = False) -> None:
        self._shell.start(job, self, queued=queued)

    def settle(self, job: Job) -> None:
        """From the side of a handler whose job has its outcome: forget it, end the calls it has left behind, and
        start what waited for its place."""
        self.calls.abandon_all(job)
        with self._lock:
            self._forget(job)
            admitted = self._admission.release(job)
        for other in admitted:
            self._start(other, queued=True)

    def _forget(self, job: Job) -> None:
        del self._jobs[job.flow.rid]
        self._released.add(job.flow.rid)

    def _stop(
        self, job: Job, reason: Failure, queued_reason: Failure | None = None, *, force_kill: bool = False
    ) -> None:
        """End a job and the calls it has made: at once if it is queued, else by its handler."""
        with self._lock:
            queued = self._admission.withdraw(job)
            if queued:
                self._forget(job)
        if queued:
            flow = job.flow
            self._writer.post(err_frame(flow.rid, queued_reason or reason, xid=flow.xid), flow, terminal=True)
        elif job.stop(reason):
            self.calls.cancel_all(job, reason_of(reason), force_kill=force_kill)
            self._shell.stopped(job, self)

    def _cancel(self, job: Job, reason: CancelReason, *, force_kill: bool = False) -> None:
        failure = reason.failure()
        message = f"{failure.message[:LONGEST_TEXT]} (while queued)"
        queued = failure._replace(code=failure.code[:LONGEST_TEXT], message=message)
        self._stop(job, failure, queued, force_kill=force_kill)

    def _on_cancel(self, view: FrameView) -> None:
        job = self._job_of(view)
        if job is not None:
            self._cancel(job, read_cancel(view.meta), force_kill=view.fields.get(18) is True)

    def _on_close_stream(self, view: FrameView) -> None:
        job = self._job_of(view)
        if job is not None:
            job.arguments.close_feeds(view.stream_id)

    def _on_stream(self, view: FrameView) -> None:
        found = self._receiver(view)
        if isinstance(found, CallCore):
            self.calls.take(found, view)
        elif found is None:
            self._count(view)
        elif found.stop_reason is not None:
            self._counts.stragglers[view.type.name.lower()] += 1
        else:
            try:
                credit = found.arguments.take(view)
            except (CartridgeError, ProtocolError) as error:
                self._stop(found, _failure(error))
                return
            if credit is not None:
                self._writer.post(credit)

    def _on_end(self, view: FrameView) -> None:
        found = self._receiver(view)
        if isinstance(found, CallCore):
            self.calls.take(found, view)
        elif found is None:
            self._count(view)
        else:
            try:
                found.arguments.end()
            except ProtocolError as error:
                self._stop(found, _failure(error))

    def _on_err(self, view: FrameView) -> None:
        found = self._receiver(view)
        if isinstance(found, CallCore):
            self.calls.take(found, view)
        elif found is None:
            self._count(view)
        else:
            found.arguments.fail(failure_of(view.meta).error())

    def _receiver(self, view: FrameView) -> Job | CallCore | None:
        """Return the call whose answer a frame is part of, or the job whose body. Where a call has come back to the
        process that made it, the id is live twice, and what the call itself sends is the body: also of a job that has
        ended before it."""
        call = self.calls.find(view.id)
        if call is not None and not (call.came_back and call.sends(view)):
            return call
        return self._jobs.get(view.id)

    def _on_log(self, view: FrameView) -> None:
        call = self.calls.find(view.id)
        if call is None:
            self._count(view)
        else:
            self.calls.forward(call, view)

    def _on_credit(self, view: FrameView) -> None:
        direction, stream_id, credit = view.meta.get("credit_dir"), view.stream_id, view.fields[19]
        if direction == REQUEST:
            call = self.calls.find(view.id)
            known = call is not None and call.grant(stream_id, credit)
        else:
            job = self._jobs.get(view.id)
            known = direction == RESPONSE and job is not None and job.outputs.grant(stream_id, credit)
        if not known:
            self._count(view)

    def _on_heartbeat(self, view: FrameView) -> None:
        if is_reply(view):  # to a probe, of which this side sends none: a host that sends ours back would never end
            self._count(view)
            return
        desired = view.meta.get("desired_capacities")
        admitted: list[Job] = []
        if desired is not None:
            try:
                with self._lock:
                    admitted = self._admission.configure(desired)
            except RemoteProtocolError as error:
                failure = Failure("UNKNOWN_POOL", AttributionClass.INTERNAL, str(error))
                self._writer.post(err_frame(view.id, failure))
                return
        for job in admitted:
            self._start(job, queued=True)
        with self._lock:
            meta = {
                "drops_total": self._counts.drops.total(),
                "stragglers_total": self._counts.stragglers.total() + self._writer.stragglers,
                "overruns_total": self._shell.overruns,
                "pools": write_pools(self._admission.states()),
            }
        self._writer.post(Frame(FrameType.HEARTBEAT, view.id, meta=meta))

    def _job_of(self, view: FrameView) -> Job | None:
        """Return the job a frame belongs to; a frame that has none is counted. The XID plays no part."""
        job = self._jobs.get(view.id)
        if job is None:
            self._count(view)
        return job

    def _count(self, view: FrameView) -> None:
        with self._lock:
            self._counts.unroutable(view)


def _failure(error: CartridgeError | ProtocolError) -> Failure:
    detail = error.detail if isinstance(error, CartridgeError) else None
    return Failure(error.code, error.attribution, str(error.args[0])[: 4 * LONGEST_TEXT], detail)
