"""Faults of requests and their streams."""

from __future__ import annotations

from typing import Any

from capdag.errors import AttributionClass
from capdag.wire import (
    Failure,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    end_frame,
    err_frame,
    item_payloads,
    log_frame,
    read_cancel,
)
from tests.conformance.mutants._entry import finds
from tests.conformance.plain import ECHO, Plain, Served

_INTERNAL = AttributionClass.INTERNAL


@finds("answer")
class FailsAtAbc(Plain):
    def end(self, served: Served) -> None:
        if served.cap == ECHO and served.sent == 1 and self.last == b"abc":
            self.send(Frame(FrameType.END, served.rid, routing_id=served.xid, eof=True, meta={"exit_code": 3}))
        else:
            super().end(served)

    def echoed(self, served: Served, data: bytes) -> bytes:
        self.last = data
        return data


@finds("empty")
class NothingIsMissing(Plain):
    def finish(self, served: Served) -> None:
        super().finish(served) if served.chunks else self.missing(served)


@finds("worker")
class CannotCount(Plain):
    def count_up(self, served: Served) -> None:
        self.fail(served, Failure("HANDLER_ERROR", _INTERNAL, "cannot count"))


@finds("beyond-window")
class ForgetsAfterAWhile(Plain):
    def echoed(self, served: Served, data: bytes) -> bytes:
        return bytes(len(data)) if served.chunks > 24 else data


@finds("window-of-one")
class NeedsAWindowOfTwo(Plain):
    def pay(self, served: Served) -> None:
        if self.limits.initial_credit > 1:
            super().pay(served)


@finds("chunk-size")
class PiecesOf200(Plain):
    def piece(self) -> int:
        return max(200, super().piece())


@finds("frame-size")
class ForgetsTheRestOfAFrame(Plain):
    def piece(self) -> int:
        return min(self.limits.max_chunk, self.limits.max_frame)


@finds("items")
class EndsInsideAnItem(Plain):
    def item(self, served: Served, number: int) -> None:
        super().item(served, number)
        if number == 30 and self.piece() == 1:
            served.waiting.pop()


@finds("item-start")
class JoinsItems(Plain):
    def item(self, served: Served, number: int) -> None:
        super().item(served, number)
        if number == 2 and self.piece() > 1:
            second, meta = served.waiting.pop()
            first, meta = served.waiting.pop()
            served.waiting.append((first + second, meta))


@finds("item-meta")
class MetaEverywhere(Plain):
    def item(self, served: Served, number: int) -> None:
        served.waiting.extend((payload, {"index": number}) for payload in item_payloads(number, self.piece()))


@finds("outputs")
class AnotherMedia(Plain):
    def flow(self, served: Served, kind: FrameType, **fields: Any) -> None:
        if kind is FrameType.STREAM_START and served.cap == ECHO:
            fields["media_urn"] = "media:image"
        super().flow(served, kind, **fields)


@finds("stream-order")
class LeavesStreamsOpen(Plain):
    def stream_end(self, served: Served) -> None:
        if served.cap != ECHO:
            super().stream_end(served)


class _OddChunks(Plain):
    """Changes CHUNKs of the echo."""

    def changed(self, fields: dict[str, Any]) -> None:
        raise NotImplementedError

    def flow(self, served: Served, kind: FrameType, **fields: Any) -> None:
        if kind is FrameType.CHUNK and served.cap == ECHO:
            self.changed(fields)
        super().flow(served, kind, **fields)


@finds("chunk-index")
class CountsFromOne(_OddChunks):
    def changed(self, fields: dict[str, Any]) -> None:
        fields["chunk_index"] += 1


@finds("chunk-count")
class MiscountsChunks(Plain):
    def stream_end(self, served: Served) -> None:
        served.sent += 1
        super().stream_end(served)


@finds("checksum")
class WrongChecksum(_OddChunks):
    def changed(self, fields: dict[str, Any]) -> None:
        fields["checksum"] ^= 1


@finds("payload")
class RawBytes(Plain):
    def out_chunk(self, served: Served, payload: bytes, meta: dict[str, Any] | None) -> None:
        super().out_chunk(served, b"\xff" + payload[1:] if served.cap == ECHO else payload, meta)


@finds("seq")
class NumbersFromOne(Plain):
    def send(self, *frames: Frame) -> None:
        for frame in frames:
            super().send(frame)
            if frame.frame_type in (FrameType.CHUNK, FrameType.STREAM_END):
                frame.seq += 1


@finds("ids")
class DropsTheXid(Plain):
    def end(self, served: Served) -> None:
        self.send(end_frame(served.rid, xid=None if served.cap == ECHO else served.xid, seq=4))


@finds("one-terminal")
class AnswersLateCancels(Plain):
    def stray(self, view: FrameView) -> None:
        if view.type is FrameType.CANCEL and view.id in self.past:
            self.out.append(err_frame(view.id, read_cancel(view.meta).failure(), xid=view.xid, seq=9))

    def begin(self) -> None:
        self.past: set[Any] = set()

    def forget(self, served: Served) -> None:
        super().forget(served)
        self.past.add(served.rid)


@finds("after-terminal")
class LogsAfterEnd(Plain):
    def end(self, served: Served) -> None:
        super().end(served)
        late = log_frame(served.rid, LogRecord("progress", "done", 1.0), xid=served.xid, seq=9)
        if served.cap == ECHO:
            self.out.append(late)


@finds("end-meta")
class SaysNothingAtEnd(Plain):
    def end(self, served: Served) -> None:
        self.send(Frame(FrameType.END, served.rid, routing_id=served.xid, eof=True))


@finds("err-meta")
class NoClass(Plain):
    def send(self, *frames: Frame) -> None:
        for frame in frames:
            if frame.frame_type is FrameType.ERR and (frame.meta or {}).get("code") == "NO_HANDLER":
                frame.meta = {"code": "NO_HANDLER", "message": "nobody"}
            super().send(frame)


@finds("log-meta")
class LogsWithoutMessage(Plain):
    def log(self, served: Served, record: LogRecord) -> None:
        frame = log_frame(served.rid, record, xid=served.xid)
        if record.level == "progress":
            frame.meta = {"level": "progress"}
        self.send(frame)


@finds("concurrent")
class MixesRequests(Plain):
    def echoed(self, served: Served, data: bytes) -> bytes:
        return b"?" * len(data) if len(self.served) > 4 else data
