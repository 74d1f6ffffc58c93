"""Plays the host's part of a trace over a link, in step with the cartridge.

A frame is sent as soon as the cartridge has come as far as it had when the frame was sent. Grants are not replayed but
made anew, because a cartridge may cut its answer into other CHUNKs; ids that the cartridge makes itself take the place
of those it made then.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

import trio

from capdag.errors import ProtocolError
from capdag.transport import ByteLink
from capdag.wire import (
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    FrameType,
    FrameView,
    MessageId,
    credit_frame,
    read_cartridge_hello,
    read_hello,
    show_id,
    view_of,
)

from .file import End, FrameSeen, Record, TraceError
from .story import ending, requests_of, view_in

_Step = tuple[FrameType, MessageId, str | None]
"""A kind of progress of the cartridge: how many frames of a type of a request came, for CREDIT how much of it for a
stream."""

_OF_ITS_OWN = frozenset({FrameType.REQ, FrameType.HEARTBEAT})
"""Types whose ids the cartridge makes when it begins with them."""


class Player:
    """The host's side of a replay, and the receiver of its link.

    `ends` says how each request to the cartridge ended, by its recorded RID; `notes` where the cartridge did not come
    as far as in the trace; `ended` what the link ended with. Raises TraceError for a trace without its host's HELLO.
    """

    def __init__(self, records: Sequence[Record], patience: float) -> None:
        self.ends: dict[MessageId, str] = {}
        self.notes: list[str] = []
        self._patience = patience
        self._frames = list(_frames(records))
        greeting = next((view for _, to, view in self._frames if to == "cartridge"), None)
        if greeting is None or greeting.type is not FrameType.HELLO:
            raise TraceError("the trace does not begin with a HELLO to the cartridge: record from a process's start")
        self._limits = read_hello(greeting)
        self._window = self._limits.initial_credit
        self._sent: Counter[tuple[MessageId, str | None]] = Counter()
        self._asked = {story.rid for story in requests_of(records) if story.asked == "cartridge"}
        self._granted = {view.id for _, to, view in self._frames if to == "cartridge" and view.type is FrameType.CREDIT}
        self._made: defaultdict[tuple[FrameType, str], deque[MessageId]] = defaultdict(deque)
        for _, to, view in self._frames:
            if to == "host" and view.type in _OF_ITS_OWN and view.id not in self._asked:
                self._made[_kind(view)].append(view.id)
        self._ids_now: dict[MessageId, MessageId] = {}
        self._ids_then: dict[MessageId, MessageId] = {}
        self._came: Counter[_Step] = Counter()
        self._moved = trio.Event()
        self.ended = ""
        self._over = trio.Event()
        self._link: ByteLink | None = None

    def use(self, link: ByteLink) -> None:
        """Send over this link, whose receiver this is."""
        self._link = link

    # The cartridge's frames

    def deliver(self, batch: Sequence[FrameView]) -> None:
        """Count the frames of one read, and grant what they used."""
        used: Counter[tuple[MessageId, str, MessageId | None]] = Counter()
        for view in batch:
            self._take(view)
            if view.type is FrameType.CHUNK and view.stream_id is not None and self._then(view) in self._granted:
                used[view.id, view.stream_id, view.xid] += 1
        assert self._link is not None
        self._link.send([
            view_of(credit_frame(rid, stream, chunks, RESPONSE if rid in self._asked else REQUEST, xid=xid))
            for (rid, stream, xid), chunks in used.items()
        ])  # fmt: skip
        self._moved.set()

    def closed(self, reason: str) -> None:
        """Nothing more comes."""
        self._over.set()
        self.ended = reason
        self._moved.set()

    def _take(self, view: FrameView) -> None:
        if view.type is FrameType.HELLO and self._link is not None:
            try:
                limits = self._limits.negotiate(read_cartridge_hello(view).limits)
                self._link.set_limits(limits)
                self._window = limits.initial_credit
            except ProtocolError as error:
                self.notes.append(f"its HELLO is wrong: {error}")
        then = self._then(view)
        self._came[_step(view, then)] += _amount(view)
        if view.type in TERMINAL_TYPES and then in self._asked:
            self.ends.setdefault(then, ending(view))

    def _then(self, view: FrameView) -> MessageId:
        """Return the id that the frame's request had in the trace."""
        waiting = self._made.get(_kind(view)) if view.type in _OF_ITS_OWN else None
        if waiting and view.id not in self._asked and view.id not in self._ids_then:
            then = waiting.popleft()
            self._ids_then[view.id], self._ids_now[then] = then, view.id
        return self._ids_then.get(view.id, view.id)

    # The host's frames

    async def play(self) -> None:
        """Send every frame of the host in its turn, and wait for what followed the last, or for the cartridge's end.

        Cancelling it is free.
        """
        needed: Counter[_Step] = Counter()
        granted: Counter[_Step] = Counter()
        before = 0.0
        for seconds, to, view in self._frames:
            if to == "host":
                (granted if view.type is FrameType.CREDIT else needed)[_step(view, view.id)] += _amount(view)
            elif view.type is not FrameType.CREDIT:
                if view.type is FrameType.CHUNK:
                    self._await_credit(view, needed, granted)
                await self._come_to(needed, seconds - before)
                if self._over.is_set() or self._is_mute(needed):
                    return
                self._send(view)
                before = seconds
        await self._come_to(needed, self._frames[-1][0] - before)

    def _is_mute(self, needed: Counter[_Step]) -> bool:
        """True if the cartridge has not even answered HELLO when it had to: nothing else will come."""
        hello = (FrameType.HELLO, 0, None)
        return hello in needed and not self._came[hello]

    def _await_credit(self, chunk: FrameView, needed: Counter[_Step], granted: Counter[_Step]) -> None:
        """Need the grant that covers a CHUNK of ours, unless it went without one when it was recorded."""
        grant = (FrameType.CREDIT, chunk.id, chunk.stream_id)
        self._sent[chunk.id, chunk.stream_id] += 1
        beyond = self._sent[chunk.id, chunk.stream_id] - self._window
        if 0 < beyond <= granted[grant]:
            needed[grant] = beyond

    async def over(self) -> None:
        """Wait until nothing more comes. Cancelling it is free."""
        await self._over.wait()

    def _send(self, view: FrameView) -> None:
        assert self._link is not None
        if view.id in self._ids_now:
            frame = view.frame()
            frame.id = self._ids_now[view.id]
            view = view_of(frame)
        elif any(view.id in ids for ids in self._made.values()):
            return  # of a call that the cartridge has not made: said already
        self._link.send([view])

    async def _come_to(self, needed: Counter[_Step], seconds: float) -> None:
        """Wait until the cartridge has come as far as `needed`; note where it does not, and go on from there."""
        with trio.move_on_after(self._patience + max(0.0, seconds)):
            while not self._over.is_set() and any(self._missing(needed)):
                self._moved = trio.Event()
                await self._moved.wait()
        for step in list(self._missing(needed)):
            kind, rid, _ = step
            short = f"{self._came[step]} of {needed[step]}"
            self.notes.append(f"{kind.name} of {show_id(rid)[:8]}: {short} came")
            needed[step] = self._came[step]

    def _missing(self, needed: Counter[_Step]) -> Iterator[_Step]:
        for step, amount in needed.items():
            kind, rid, _ = step
            if self._came[step] < amount and not (kind is FrameType.CHUNK and self._all_ended(rid)):
                yield step

    def _all_ended(self, rid: MessageId) -> bool:
        """True if the cartridge has ended every stream of the request: it has cut them into fewer CHUNKs."""
        ended = self._came[FrameType.STREAM_END, rid, None]
        return rid in self.ends or 0 < ended == self._came[FrameType.STREAM_START, rid, None]


def _frames(records: Sequence[Record]) -> Iterator[tuple[float, End, FrameView]]:
    """Yield the frames of a trace. A cartridge's LOGs are left out: how many come depends on the time work takes."""
    for record in records:
        view = view_in(record)
        if view is None or not isinstance(record, FrameSeen):
            continue
        if record.to == "cartridge" or view.type is not FrameType.LOG:
            yield record.t, record.to, view


def _kind(view: FrameView) -> tuple[FrameType, str]:
    return view.type, str(view.fields.get(10) or "")


def _step(view: FrameView, rid: MessageId) -> _Step:
    return view.type, rid, view.stream_id if view.type is FrameType.CREDIT else None


def _amount(view: FrameView) -> int:
    return int(view.fields.get(19) or 0) if view.type is FrameType.CREDIT else 1
