"""One started cartridge, spoken to as a host does."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import trio

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.transport import ExitStatus
from capdag.wire import (
    RESPONSE,
    USER_CANCEL,
    AnswerRules,
    CancelReason,
    CartridgeHello,
    Frame,
    FrameType,
    FrameView,
    IdentityCheck,
    Limits,
    MessageId,
    NetworkPolicy,
    SendWindow,
    SeqAssigner,
    body_end_frame,
    cancel_frame,
    credit_frame,
    fnv1a_64,
    hello_frame,
    identity_request,
    policy_frame,
    read_cartridge_hello,
    scalar_payloads,
    view_of,
)
from capdag.wire.limits import check_least

from ._case import Breach, BreachError, CaseFailed
from ._exchange import Exchange, show
from ._launch import Launcher, Target
from ._settings import Settings
from ._watch import Watch

_NONCE_SIZE = 32

INPUT = "in"
"""The stream id of the kit's arguments."""


class Session:
    """A cartridge from start to end. It is the receiver of its link: frames are judged as they come, and whoever waits
    is woken. Every wait is bounded, and raises CaseFailed or BreachError if what it waits for does not come."""

    def __init__(
        self, launch: Launcher, settings: Settings, limits: Limits, report: Callable[[Breach], None],
        tally: Counter[FrameType],
    ) -> None:  # fmt: skip
        self.settings = settings
        self.offered = limits
        self.hello: CartridgeHello | None = None
        self.hello_seconds = 0.0
        self.identity_error = ""
        self._checked: Exchange | None = None
        self.identity_breach: Breach | None = None
        self.watch = Watch(self._send_judged, report, tally)
        self.target: Target
        self._launch = launch
        self._changed = trio.Event()
        self._closed = ""
        self._stop = trio.Event()
        self._gone = trio.Event()
        self._numbers = SeqAssigner()
        self._xids = count(1)

    # The process

    async def keep(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process and keep it until `end`; nothing of it is left then. Raises SpawnError."""
        try:
            async with self._launch(self) as self.target:
                task_status.started()
                await self._stop.wait()
        finally:
            self._gone.set()

    async def end(self) -> None:
        """End the process, and wait until it has gone."""
        self._stop.set()
        with trio.CancelScope(shield=True):  # bounded: the process is killed
            await self._gone.wait()

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Take what the cartridge says."""
        for view in batch:
            self.watch.take(view)
        self._wake()

    def closed(self, reason: str) -> None:
        """Note the end of the link."""
        self._closed = reason
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # Waiting

    async def until(self, done: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        """Wait until `done()`; `what` says what for. Raises CaseFailed if it takes longer, or if the process ends."""
        limit = self.settings.timeout if seconds is None else seconds
        with trio.move_on_after(limit):
            while not done():
                await self.check()
                await self._changed.wait()
            return
        raise CaseFailed(f"{what} did not come within {limit:g} s")

    async def check(self) -> None:
        """Raise what ended the link, if it has ended."""
        if self.watch.over is not None:
            raise BreachError(self.watch.over)
        if not self._closed:
            return
        if self.target.violation is not None:
            breach = Breach("stdout", str(self.target.violation))
            self.watch.over = self.watch.note(*breach)
            raise BreachError(breach)
        with trio.move_on_after(1):
            await self.target.wait_exit()
        raise CaseFailed(self.story())

    def story(self) -> str:
        """Say how the process and its link stand."""
        status = self.target.exit_status()
        ended = status.describe() if status else ""
        words = f"the process {'was ' if ended.startswith('killed') else ''}{ended}" if ended else self._closed
        stderr = self.target.stderr()
        return f"{words}; its stderr ends: {stderr[-400:]}" if stderr else words

    async def until_quiet(self, seconds: float) -> None:
        """Wait, and raise CaseFailed if the cartridge says anything meanwhile."""
        with trio.move_on_after(seconds):
            while not self.watch.frames:
                await self.check()
                await self._changed.wait()
            raise CaseFailed(f"{self.watch.frames} frames came before HELLO was sent")

    @property
    def ended_itself(self) -> bool:
        """True once the cartridge has closed its stdout, as its exit does."""
        return bool(self._closed)

    async def settle(self) -> None:
        """Give the cartridge the time in which nothing may come."""
        await trio.sleep(self.settings.settle)

    async def exit(self, what: str) -> ExitStatus:
        """Wait for the end of the process. Raises CaseFailed if it takes too long."""
        with trio.move_on_after(self.settings.exit_timeout):
            return await self.target.wait_exit()
        raise CaseFailed(f"{what}, the process was still there after {self.settings.exit_timeout:g} s")

    # The handshake

    async def greet(self) -> None:
        """Exchange HELLO. Raises CaseFailed if the answer does not come, or is none."""
        begun = trio.current_time()
        self.send(hello_frame(self.offered))
        try:
            await self.until(lambda: self.watch.hello is not None, "HELLO", self.settings.start_timeout)
            assert self.watch.hello is not None
            self.hello = read_cartridge_hello(self.watch.hello)
            check_least(self.hello.limits, self.offered)
        except RemoteProtocolError as error:
            raise CaseFailed(str(error)) from None
        self.hello_seconds = trio.current_time() - begun
        self.watch.limits = self.offered.negotiate(self.hello.limits)

    async def identify(self, frames: Sequence[Frame], check: IdentityCheck) -> str:
        """Ask for the identity; returns what is wrong with the answer, empty if nothing is."""
        rid, xid = frames[0].id, frames[0].routing_id
        exchange = self._checked = self._enter(rid, xid, None)
        for frame in frames:
            if frame.frame_type is FrameType.CHUNK:
                window = exchange.windows[frame.stream_id or ""] = SendWindow(self.limits.initial_credit)
                window.take()
            self.send_as_is(frame)
            exchange.sent(frame.frame_type)
        try:
            await self.until(
                lambda: not exchange.live or exchange.fault is not None, "the answer to the identity check"
            )
            if exchange.fault is not None:
                raise BreachError(exchange.fault)
            proved = any(check.feed(view) for view in exchange.views)
        except (CaseFailed, RemoteProtocolError) as error:
            return str(error)
        return "" if proved else f"the answer ended with {show(exchange.terminal)}"

    async def shake_hands(self, *, policy: bool = True) -> None:
        """HELLO, identity and, unless told otherwise, POLICY: what a host does before the first request."""
        await self.greet()
        nonce = os.urandom(_NONCE_SIZE)
        if self.limits.max_chunk >= _NONCE_SIZE:  # else the check itself would be too long a CHUNK
            frames = identity_request(uuid.uuid4().bytes, nonce)
            try:
                self.identity_error = await self.identify(frames, IdentityCheck(nonce))
            except BreachError as error:
                self.identity_breach = error.breach
        self.watch.prove()
        if policy:
            self.say_policy(NetworkPolicy.OFFLINE)

    def say_policy(self, policy: NetworkPolicy) -> None:
        """Send POLICY."""
        self.watch.policy_sent = True
        self.send(policy_frame(policy))

    # Frames

    @property
    def limits(self) -> Limits:
        """What this link has agreed on."""
        return self.watch.limits

    def send(self, *frames: Frame) -> None:
        """Number frames and send them."""
        for frame in frames:
            self._numbers.assign(frame)
            self.send_as_is(frame)

    def send_as_is(self, frame: Frame) -> None:
        """Send a frame with the seq it has."""
        self.send_view(view_of(frame))

    def send_view(self, view: FrameView) -> None:
        """Send the bytes of a body."""
        try:
            self.target.link.send([view])
        except LocalProtocolError as error:
            raise CaseFailed(f"the cartridge's limits leave no room for what a host says: {error}") from None

    def _send_judged(self, frame: Frame) -> None:
        self.send(frame)

    async def ask_back(self, frame: Frame, what: str, seconds: float | None = None) -> FrameView:
        """Send a frame that is answered under its own id, and return the answer."""
        self.watch.replies[frame.id] = None
        self.send(frame)
        await self.until(lambda: self.watch.replies[frame.id] is not None, what, seconds)
        reply = self.watch.replies[frame.id]
        assert reply is not None
        return reply

    async def beat(self, meta: Mapping[str, Any] | None = None, *, case: str = "heartbeat") -> FrameView:
        """Send a heartbeat and return the reply. Raises BreachError for `case` if none comes."""
        frame = Frame(FrameType.HEARTBEAT, uuid.uuid4().bytes, meta=meta)
        try:
            return await self.ask_back(frame, "the reply to a heartbeat", self.settings.reply_timeout)
        except CaseFailed as error:
            if self._closed:
                raise
            raise BreachError(self.watch.note(case, str(error))) from None

    async def lives_on(self) -> None:
        """Make sure that the cartridge has survived what it was sent."""
        await self.beat()

    # Requests

    def _enter(self, rid: MessageId, xid: MessageId | None, rules: AnswerRules | None) -> Exchange:
        exchange = self.watch.exchanges[rid, xid] = Exchange(rid, xid, self.limits, rules)
        return exchange

    def begin(
        self, cap: str | None, rules: AnswerRules | None = None, *, rid: MessageId | None = None,
        xid: MessageId | None = None, payload: bytes = b"",
    ) -> Exchange:  # fmt: skip
        """Send REQ. The answer is held to `rules`, which are those of the cap."""
        rid = uuid.uuid4().bytes if rid is None else rid
        xid = next(self._xids) if xid is None else xid
        exchange = self._enter(rid, xid, rules)
        frame = Frame(FrameType.REQ, rid, cap=cap, content_type="application/cbor", payload=payload, routing_id=xid)
        self.flow(exchange, frame)
        return exchange

    def flow(self, exchange: Exchange, frame: Frame) -> None:
        """Send a frame of a request's body."""
        frame.routing_id = exchange.xid
        self.send(frame)
        exchange.sent(frame.frame_type)

    def open(self, exchange: Exchange, media: str, stream: str = INPUT) -> None:
        """Open an argument."""
        exchange.windows[stream] = SendWindow(self.limits.initial_credit)
        self.flow(
            exchange,
            Frame(FrameType.STREAM_START, exchange.rid, stream_id=stream, media_urn=media, is_sequence=False),
        )

    async def write(
        self, exchange: Exchange, index: int, payload: bytes, stream: str = INPUT, *, seconds: float | None = None
    ) -> None:
        """Send one CHUNK under credit; nothing once the answer has ended. Raises BreachError for the case
        `credit-grants` if no grant comes."""
        window = exchange.windows[stream]
        try:
            await self.until(
                lambda: window.remaining > 0 or not exchange.live or bool(exchange.fault), "a grant", seconds
            )
        except CaseFailed as error:
            if self._closed:
                raise
            seen = f"{error}: {window.initial} CHUNKs of an argument were sent, and the sender waits"
            case = exchange.blame.get("credit-grants", "credit-grants")
            raise BreachError(self.watch.note(case, seen)) from None
        if exchange.live and not exchange.fault and window.take():
            self.flow(exchange, chunk_frame(exchange.rid, index, payload, stream))

    def close(self, exchange: Exchange, chunks: int, stream: str = INPUT) -> None:
        """End an argument."""
        self.flow(exchange, Frame(FrameType.STREAM_END, exchange.rid, stream_id=stream, chunk_count=chunks))

    def finish(self, exchange: Exchange) -> None:
        """End the body."""
        self.flow(exchange, body_end_frame(exchange.rid))

    async def give(
        self, exchange: Exchange, media: str, payloads: Sequence[bytes], seconds: float | None = None
    ) -> None:
        """Send a body of one argument, under credit; a grant may take `seconds`."""
        self.open(exchange, media)
        for index, payload in enumerate(payloads):
            await self.write(exchange, index, payload, seconds=seconds)
        if exchange.live:
            self.close(exchange, len(payloads))
            self.finish(exchange)

    def cancel(self, exchange: Exchange, reason: CancelReason) -> None:
        """Send CANCEL."""
        self.send(cancel_frame(exchange.rid, reason, xid=exchange.xid))
        exchange.sent(FrameType.CANCEL)

    def send_late(self, exchange: Exchange) -> None:
        """Send what may still be on the way when a request has ended."""
        self.send(
            cancel_frame(exchange.rid, USER_CANCEL, xid=exchange.xid),
            credit_frame(exchange.rid, exchange.main_stream, 1, RESPONSE, xid=exchange.xid),
            Frame(FrameType.CLOSE_STREAM, exchange.rid, routing_id=exchange.xid),
        )

    def grant(self, exchange: Exchange, credit: int) -> None:
        """Grant CHUNKs of the main output."""
        exchange.granted(exchange.main_stream, credit)
        self.send(credit_frame(exchange.rid, exchange.main_stream, credit, RESPONSE, xid=exchange.xid))

    async def ended(self, exchange: Exchange, what: str = "END or ERR") -> FrameView:
        """Wait for the terminal of a request and return it. Raises BreachError if the answer breaks a rule."""
        await self.until(lambda: exchange.terminal is not None or exchange.fault is not None, what)
        if exchange.fault is not None:
            raise BreachError(exchange.fault)
        assert exchange.terminal is not None
        return exchange.terminal

    @property
    def clean(self) -> bool:
        """True if nothing of a former case can be felt in the next."""
        exchanges, check = self.watch.exchanges.values(), self._checked  # an identity that fails spoils nothing else
        spoiled = self._closed or self.watch.over or any(one.live or one.fault for one in exchanges if one is not check)
        return not spoiled and self.target.exit_status() is None


def chunk_frame(rid: MessageId, index: int, payload: bytes, stream: str = INPUT) -> Frame:
    """Return a CHUNK of an argument."""
    return Frame(FrameType.CHUNK, rid, stream_id=stream, payload=payload, chunk_index=index, checksum=fnv1a_64(payload))


def payloads_of(data: bytes, size: int) -> list[bytes]:
    """Return the payloads of bytes that are sent in pieces of `size`."""
    return list(scalar_payloads(data, size))
