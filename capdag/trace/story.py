"""The requests of a trace: who asked for what, and how it ended."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    IDENTITY_CAP,
    TERMINAL_TYPES,
    FrameType,
    FrameView,
    MessageId,
    failure_of,
    inspect,
    is_success,
    show_id,
)

from .file import End, FrameSeen, Record, Trace

_OF_THE_LINK = frozenset({FrameType.HELLO, FrameType.POLICY, FrameType.HEARTBEAT})


@dataclass
class RequestStory:
    """One request: `asked` is its receiver; CHUNKs and payload bytes in and out are seen from there.

    `end` is None while it runs, else as `ending` says it.
    """

    rid: MessageId
    cap: str
    asked: End
    began: float
    ended: float | None = None
    end: str | None = None
    chunks_in: int = 0
    bytes_in: int = 0
    chunks_out: int = 0
    bytes_out: int = 0
    cancelled: str | None = None
    parent: MessageId | None = None

    @property
    def name(self) -> str:
        """The RID as people read it."""
        return show_id(self.rid)

    def take(self, seen: FrameSeen, view: FrameView) -> None:
        """Count one frame of the request."""
        inwards = seen.to == self.asked
        if view.type is FrameType.CHUNK:
            if inwards:
                self.chunks_in, self.bytes_in = self.chunks_in + 1, self.bytes_in + view.payload_size
            else:
                self.chunks_out, self.bytes_out = self.chunks_out + 1, self.bytes_out + view.payload_size
        elif view.type is FrameType.CANCEL and inwards:
            self.cancelled = str(view.meta.get("code") or "CANCELLED")
        elif view.type in TERMINAL_TYPES and not inwards and self.end is None:
            self.ended, self.end = seen.t, ending(view)


def ending(view: FrameView) -> str:
    """Return how a terminal ends its request: `END`, `END exit_code N`, or an ERR's code and class."""
    if view.type is FrameType.END:
        return "END" if is_success(view.meta) else f"END exit_code {view.meta.get('exit_code')}"
    failure = failure_of(view.meta)
    return f"{failure.code} / {failure.attribution.value}"


def view_in(record: Record) -> FrameView | None:
    """Return the frame of a record; None for one of another kind, or one that our decoder refuses."""
    if not isinstance(record, FrameSeen):
        return None
    try:
        return inspect(record.body)
    except RemoteProtocolError:
        return None


def requests_of(records: Sequence[Record]) -> list[RequestStory]:
    """Return the requests in the order of their REQs, peer calls among them."""
    stories: list[RequestStory] = []
    by_rid: dict[MessageId, RequestStory] = {}
    for record in records:
        view = view_in(record)
        if view is None or not isinstance(record, FrameSeen):
            continue
        if view.type is FrameType.REQ:
            parent = view.meta.get("parent_rid")
            story = RequestStory(view.id, str(view.fields.get(10) or ""), record.to, record.t)
            story.parent = parent if isinstance(parent, (bytes, int)) else None
            stories.append(story)
            by_rid[view.id] = story
        elif view.id in by_rid:
            by_rid[view.id].take(record, view)
    return stories


def match_request(stories: Sequence[RequestStory], prefix: str) -> set[MessageId]:
    """Return the ids of the requests whose RID begins with `prefix`, and of the peer calls made for them."""
    found = {story.rid for story in stories if story.name.startswith(prefix.lower())}
    for story in stories:  # a call comes after its parent
        if story.parent in found:
            found.add(story.rid)
    return found


def select(trace: Trace, rids: Container[MessageId]) -> Trace:
    """Return the trace with the frames of these requests, of the identity check and of the link itself."""
    checks = {story.rid for story in requests_of(trace.records) if story.cap == IDENTITY_CAP}

    def wanted(record: Record) -> bool:
        view = view_in(record)
        return view is None or view.type in _OF_THE_LINK or view.id in rids or view.id in checks

    return Trace(trace.head, [record for record in trace.records if wanted(record)])
