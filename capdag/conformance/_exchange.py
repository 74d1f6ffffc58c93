"""One request of the kit's own, as its requester sees it."""

from __future__ import annotations

from collections import deque
from typing import Any

from capdag.wire import (
    PAYLOAD_HEADROOM,
    TERMINAL_TYPES,
    AnswerRules,
    CreditViolationError,
    FrameType,
    FrameView,
    InStream,
    InStreams,
    Limits,
    MessageId,
    ProtocolError,
    SendWindow,
    is_success,
    read_failure,
    read_log,
    show_id,
)
from capdag.wire.life import Life
from capdag.wire.request_life import REQUEST_LIFE, RequestEvent, RequestState, Side
from capdag.wire.streams import BrokenStreamError, StreamRule

from ._case import Breach

_KEPT = 1000
"""Frames of an answer that are remembered."""

_LONGEST = 240

_OWNERS = {
    StreamRule.LIFE: "stream-order",
    StreamRule.INDEX: "chunk-index",
    StreamRule.CHECKSUM: "checksum",
    StreamRule.COUNT: "chunk-count",
    StreamRule.ITEM: "item-start",
    StreamRule.OUTPUT: "outputs",
}
"""The case that is about each rule of streams."""


class Exchange:
    """A request: what went, what came, and the rules that its answer is held to.

    `rules` are those that the cap's manifest makes for the streams of its answer. With `grants` every CHUNK is granted
    as it comes; a case that wants to starve the sender sets it to False and grants by itself. `blame` names the case
    that is told of a broken rule where the usual one would be wrong.
    """

    def __init__(self, rid: MessageId, xid: MessageId | None, limits: Limits, rules: AnswerRules | None) -> None:
        self.rid = rid
        self.xid = xid
        self.grants = True
        self.blame: dict[str, str] = {}
        self.views: deque[FrameView] = deque(maxlen=_KEPT)
        self.values: dict[str, list[Any]] = {}
        self.windows: dict[str, SendWindow] = {}
        self.chunks = 0
        self.terminal: FrameView | None = None
        self.fault: Breach | None = None
        self._life: Life[RequestState, RequestEvent] = Life(REQUEST_LIFE, RequestState.NONE)
        self._limits = limits
        self._rules = rules
        self._streams = InStreams(limits.initial_credit)
        self._open: dict[str, InStream] = {}
        self._main = ""

    @property
    def live(self) -> bool:
        """True until its terminal."""
        return self._life.state is not RequestState.NONE

    def sent(self, kind: FrameType) -> None:
        """Note that a frame of the requester's has gone."""
        self._life.take((Side.REQUESTER, kind))

    def granted(self, stream_id: str, credit: int) -> None:
        """Note a grant that a case has made."""
        self._streams.note_grant(stream_id, credit)

    @property
    def main(self) -> list[Any]:
        """The values of the main output so far."""
        return self.values.get(self._main, [])

    @property
    def main_stream(self) -> str:
        """The id of the main output's stream, empty before it has begun."""
        return self._main

    @property
    def data(self) -> bytes:
        """The main output's values, joined to bytes."""
        return b"".join(value.encode() if isinstance(value, str) else bytes(value) for value in self.main)

    def take(self, view: FrameView) -> int:
        """Take a flow frame of the answer; returns the grant that it is due. `fault` says which rule it broke."""
        self.views.append(view)
        self._life.take((Side.HANDLER, view.type))
        if view.type in TERMINAL_TYPES:
            self.terminal = view
        try:
            return self._judge(view)
        except CreditViolationError as error:
            self._broke("credit-window", str(error))
        except BrokenStreamError as error:
            cut = view.type is FrameType.STREAM_END and self._inside_item(view.stream_id)
            self._broke("items" if cut else _OWNERS[error.rule], str(error))
        except ProtocolError as error:
            self._broke(_FORMS[view.type], str(error))
        return 0

    def _broke(self, case: str, seen: str) -> None:
        self.fault = self.fault or Breach(self.blame.get(case, case), f"request {show_id(self.rid)}: {seen}")

    def _inside_item(self, stream_id: str | None) -> bool:
        stream = self._open.get(stream_id or "")
        return stream is not None and stream.head.is_sequence and not stream.ended

    def _judge(self, view: FrameView) -> int:
        if view.type is FrameType.STREAM_START:
            self._start(view)
        elif view.type is FrameType.CHUNK:
            return self._chunk(view)
        elif view.type is FrameType.STREAM_END:
            self._streams.of(view).end(view)
        elif view.type is FrameType.LOG:
            read_log(view.meta)
        elif view.type is FrameType.ERR:
            read_failure(view.meta)
        elif view.type is FrameType.END:
            if type(view.meta.get("exit_code")) is not int:
                self._broke("end-meta", f"END of an answer has exit_code {view.meta.get('exit_code')!r}")
            if is_success(view.meta):
                self._streams.check_ended()
                if self._rules is not None:
                    self._rules.end()
        return 0

    def _start(self, view: FrameView) -> None:
        stream = self._streams.start(view)
        self._open[stream.head.stream_id] = stream
        if stream.head.output is None and not self._main:
            self._main = stream.head.stream_id
        if self._rules is not None:
            self._rules.start(stream.head)

    def _chunk(self, view: FrameView) -> int:
        stream = self._streams.of(view)
        longest = self._limits.max_chunk + (0 if stream.head.is_sequence else PAYLOAD_HEADROOM)
        if view.payload_size > longest:
            self._broke("chunk-size", f"a CHUNK's payload has {view.payload_size} bytes; {longest} are the most here")
        received = stream.chunk(view)
        self.chunks += 1
        self.values.setdefault(stream.head.stream_id, []).extend(received.values)
        if stream.head.is_sequence:
            self._item(view, continues=not received.owed)
        if not self.grants:
            return 0
        return stream.window.consume(received.owed) + received.grant_now + stream.window.flush()

    def _item(self, view: FrameView, *, continues: bool) -> None:
        if continues and view.meta:
            self._broke("item-meta", f"a CHUNK that continues an item has meta {dict(view.meta)!r}")


_FORMS = {
    FrameType.LOG: "log-meta",
    FrameType.ERR: "err-meta",
    FrameType.END: "end-meta",
    FrameType.CHUNK: "payload",
    FrameType.STREAM_START: "stream-order",
    FrameType.STREAM_END: "stream-order",
}
"""The case that is about what a frame of this type holds."""


def show(view: FrameView | None) -> str:
    """Return a frame as a report tells it: type, what it says, bounded."""
    if view is None:
        return "nothing"
    shown = [view.type.name]
    shown += [f"{name}={view.fields[key]!r}" for key, name in _SHOWN.items() if key in view.fields]
    if view.payload_size:
        shown.append(f"payload of {view.payload_size} bytes")
    text = " ".join(shown)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


_SHOWN = {10: "cap", 11: "stream_id", 12: "media_urn", 14: "chunk_index", 15: "chunk_count", 19: "credit", 5: "meta"}
