"""A trace as people read it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from capdag.errors import RemoteProtocolError
from capdag.printable import LONGEST_LINE, printable
from capdag.wire import FrameType, FrameView, MessageId, decode_value, inspect, show_id, show_value
from capdag.wire.meta import read_progress

from .file import Closed, Exited, FrameSeen, Record, Unreadable
from .story import RequestStory, ending

_PREVIEW = 48
_ARROWS = {"cartridge": "→", "host": "←"}
_KEYS = {10: "cap", 12: "media", 19: "credit", 14: "index", 15: "chunks", 21: "output"}


def list_records(
    records: Sequence[Record],
    *,
    rids: Container[MessageId] | None = None,
    types: Container[FrameType] | None = None,
    previews: bool = False,
) -> Iterator[str]:
    """Yield a line for each record: time, direction (→ to the cartridge), type, request, size, details.

    `rids` and `types` say which frames; without them all, and what is no frame too.
    """
    for record in records:
        if isinstance(record, FrameSeen):
            line = _frame_line(record, rids, types, previews)
        else:
            line = _event_line(record) if rids is None and types is None else None
        if line is not None:
            yield printable(line, LONGEST_LINE)


def _frame_line(
    record: FrameSeen, rids: Container[MessageId] | None, types: Container[FrameType] | None, previews: bool
) -> str | None:
    try:
        view = inspect(record.body)
    except RemoteProtocolError as error:
        return f"{record.t:10.6f} {_ARROWS[record.to]} refused       {error}"
    if (rids is not None and view.id not in rids) or (types is not None and view.type not in types):
        return None
    details = "  ".join(_details(view, previews))
    return (
        f"{record.t:10.6f} {_ARROWS[record.to]} {view.type.name:<12}  {show_id(view.id)[:8]:<8} "
        f"{len(record.body):>7} B  {details}"
    ).rstrip()


def _event_line(record: Unreadable | Closed | Exited) -> str:
    if isinstance(record, Exited):
        how = f"exited with status {record.code}" if record.signal is None else f"killed by signal {record.signal}"
        return f"{record.t:10.6f}   the cartridge {how}"
    if isinstance(record, Closed):
        return f"{record.t:10.6f} {_ARROWS[record.to]} end of stream"
    return f"{record.t:10.6f} {_ARROWS[record.to]} no frame      {record.error}"


def _details(view: FrameView, previews: bool) -> Iterator[str]:
    fields, meta = view.fields, view.meta
    if view.xid is not None:
        yield f"xid {show_id(view.xid)[:8]}"
    if view.stream_id is not None:
        yield f"stream {view.stream_id[:16]}"
    for key, name in _KEYS.items():
        if key in fields:
            yield f"{name} {fields[key]}"
    match view.type:
        case FrameType.ERR:
            yield f"{ending(view)}: {meta.get('message')}"
        case FrameType.END:
            yield ending(view) if meta else "end of the body"
        case FrameType.LOG:
            yield _log(meta)
        case FrameType.CANCEL:
            yield f"{meta.get('code') or 'no reason'}{'  force_kill' if fields.get(18) else ''}"
        case FrameType.POLICY | FrameType.HELLO:
            yield ", ".join(f"{key} {_short(value)}" for key, value in meta.items())
    if view.payload_size:
        yield f"payload {view.payload_size} B"
        if previews:
            yield preview(fields[6])


def _log(meta: Mapping[str, Any]) -> str:
    progress = read_progress(meta)
    shown = f" {progress:.0%}" if progress is not None else ""
    if not shown and "progress" in meta:  # what its readers take for none
        shown = f" ({show_value(meta['progress'])})"
    return f"{meta.get('level')}{shown} {meta.get('message') or ''}".rstrip()


def _short(value: Any) -> str:
    return f"{len(value)} B" if isinstance(value, bytes) else str(value)


def preview(payload: bytes) -> str:
    """Return the beginning of a payload's value, escaped: it may be anything, and act on no terminal."""
    try:
        shown = ascii(decode_value(payload))
    except RemoteProtocolError:
        shown = f"piece {payload[:_PREVIEW].hex()}"
    return shown if len(shown) <= _PREVIEW else shown[:_PREVIEW] + "…"


def list_requests(stories: Sequence[RequestStory]) -> Iterator[str]:
    """Yield a line for each request: RID, who asked whom, duration, contents in and out, its end."""
    for story in stories:
        took = "running" if story.ended is None else f"{(story.ended - story.began) * 1000:.1f} ms"
        line = (
            f"{story.name[:8]:<8} {_ARROWS[story.asked]} {took:>11}  "
            f"in {story.chunks_in} CHUNKs {story.bytes_in} B  out {story.chunks_out} CHUNKs {story.bytes_out} B  "
            f"{'cancelled: ' if story.cancelled else ''}{story.end or 'no end'}  {story.cap}"
        )
        yield printable(line, LONGEST_LINE)
