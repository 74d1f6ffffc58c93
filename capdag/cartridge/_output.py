"""What a handler answers: output streams, each with its own credit."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from enum import Enum
from threading import Condition, Lock
from typing import Any

from capdag.errors import CapdagError, LocalProtocolError
from capdag.urn import MediaUrn
from capdag.wire import (
    PAYLOAD_HEADROOM,
    XID_HEADROOM,
    Frame,
    FrameType,
    Limits,
    SendWindow,
    fnv1a_64,
    item_payloads,
    scalar_payloads,
)

from ._chunks import ChunkEncoder, Coalescer
from ._served import OutputFacts, ServedCap
from ._writer import Flow, FrameWriter

_HEADER_ROOM = 192
"""Bytes of a CHUNK frame that are not payload, at most, when it has no meta."""


class _State(Enum):
    """A stream's life."""

    NEW, OPEN, ENDED = range(3)


class Gate:
    """The credit of one stream, between the worker that sends and the main thread that hears of grants."""

    def __init__(self, initial: int) -> None:
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._window = SendWindow(initial)
        self._closed: CapdagError | None = None

    def take(self) -> None:
        """Use one credit, waiting for it. Raises the error the gate was closed with."""
        with self._lock:
            while self._closed is not None or not self._window.take():
                self.check()
                self._changed.wait()

    @property
    def remaining(self) -> int:
        """Credits that can be taken without waiting."""
        return 0 if self._closed is not None else self._window.remaining

    def check(self) -> None:
        """Raise the error the gate was closed with, if it was."""
        if self._closed is not None:
            raise self._closed.with_traceback(None)

    def grant(self, credit: int) -> None:
        """Add a grant."""
        with self._lock:
            self._window.grant(credit)
            self._changed.notify()

    def close(self, error: CapdagError) -> None:
        """Fail whoever waits and whoever comes."""
        with self._lock:
            self._closed = self._closed or error
            self._changed.notify_all()


class Output:
    """One output stream. Every method waits for credit as needed and may be called from any thread; all raise
    RequestCancelledError once the request is over."""

    def __init__(self, facts: OutputFacts, stream_id: str, flow: Flow, limits: Limits, writer: FrameWriter) -> None:
        self._facts = facts
        self._stream_id = stream_id
        self._flow = flow
        self._writer = writer
        self._gate = Gate(limits.initial_credit)
        room = limits.max_frame - XID_HEADROOM - PAYLOAD_HEADROOM - _HEADER_ROOM
        self._max_piece = max(1, min(limits.max_chunk, room))
        self._encoder = ChunkEncoder(flow.rid, stream_id, flow.xid, limits.max_frame)
        self._held = Coalescer()
        self._lock = Lock()
        self._state = _State.NEW
        self._chunks = 0

    @property
    def media_urn(self) -> str:
        """The media URN the manifest declares for this output."""
        return self._facts.media_urn

    @property
    def is_sequence(self) -> bool:
        """True if this output takes items, False if it takes values."""
        return self._facts.is_sequence

    @property
    def is_open(self) -> bool:
        """True between STREAM_START and STREAM_END."""
        return self._state is _State.OPEN

    def open(self, meta: Mapping[str, Any] | None = None) -> None:
        """Send STREAM_START, with meta for the whole stream if given. Writing opens too. A second time raises
        LocalProtocolError if it brings meta, and does nothing otherwise."""
        with self._lock:
            if self._state is not _State.NEW and meta is not None:
                raise LocalProtocolError(f"output {self.media_urn!r} is open already: its meta can go no more")
            self._open(meta)

    def write(self, value: Any) -> None:
        """Write to a scalar output: bytes (joined with their neighbours), text, a number, a bool, None, a list
        (element by element) or a map (pair by pair). Raises LocalProtocolError for an output of items."""
        with self._lock:
            self._require(sequence=False)
            self._open()
            if isinstance(value, (bytes, bytearray, memoryview)):
                value = self._held.add(value, time.monotonic())
            else:
                self._send_pieces(self._held.take())
            self._send_pieces(value)

    def flush(self) -> None:
        """Send bytes that `write` holds back for company."""
        with self._lock:
            self._gate.check()
            self._send_pieces(self._held.take())

    def flush_within_credit(self) -> None:
        """Send bytes that `write` holds back, if that needs no waiting."""
        if self._held and self._lock.acquire(blocking=False):
            try:
                if self._gate.remaining * self._max_piece >= len(self._held):
                    self._send_pieces(self._held.take())
            finally:
                self._lock.release()

    def item(self, item: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Write one item, with its meta if given. Raises LocalProtocolError for a scalar output."""
        with self._lock:
            self._require(sequence=True)
            self._open()
            first, *others = item_payloads(item, self._max_piece)
            if meta is None:
                self._send(first)
            else:
                self._send_described(first, meta)
            for payload in others:
                self._send(payload)

    def _require(self, *, sequence: bool) -> None:
        if self._facts.is_sequence is not sequence:
            verb, kind = ("write", "a sequence: use item") if self._facts.is_sequence else ("item", "scalar: use write")
            raise LocalProtocolError(f"{verb} on output {self.media_urn!r}, which the cap declares {kind}")

    def _open(self, meta: Mapping[str, Any] | None = None) -> None:
        self._gate.check()
        if self._state is _State.OPEN:
            return
        if self._state is _State.ENDED:
            raise LocalProtocolError(f"output {self.media_urn!r} has ended: the handler has returned")
        self._state = _State.OPEN
        start = Frame(
            FrameType.STREAM_START,
            self._flow.rid,
            stream_id=self._stream_id,
            media_urn=self._facts.stream_media,
            routing_id=self._flow.xid,
            is_sequence=self._facts.is_sequence,
            output=None if self._facts.is_main else self._facts.media_urn,
            meta=meta,
        )
        self._writer.send_frame(self._flow, start)

    def _send_pieces(self, value: Any) -> None:
        for payload in scalar_payloads(value, self._max_piece):
            self._send(payload)

    def _send(self, payload: bytes) -> None:
        checksum, index, encode = fnv1a_64(payload), self._chunks, self._encoder.encode
        self._gate.take()
        self._writer.send(self._flow, lambda seq: encode(seq, index, payload, checksum))
        self._chunks = index + 1

    def _send_described(self, payload: bytes, meta: Mapping[str, Any]) -> None:
        described = Frame(
            FrameType.CHUNK,
            self._flow.rid,
            stream_id=self._stream_id,
            payload=payload,
            routing_id=self._flow.xid,
            chunk_index=self._chunks,
            checksum=fnv1a_64(payload),
            meta=meta,
        )
        self._gate.take()
        self._writer.send_frame(self._flow, described)
        self._chunks += 1

    def finish(self) -> None:
        """Send what is held and STREAM_END. A required output that was never written is opened first."""
        with self._lock:
            if self._state is _State.NEW and not self._facts.is_required:
                return
            self._open()
            self._send_pieces(self._held.take())
            self._state = _State.ENDED
            end = Frame(
                FrameType.STREAM_END,
                self._flow.rid,
                stream_id=self._stream_id,
                routing_id=self._flow.xid,
                chunk_count=self._chunks,
            )
            self._writer.send_frame(self._flow, end)


class Outputs:
    """All outputs of one request: the main one, if the cap has one, and the named ones."""

    def __init__(self, cap: ServedCap, flow: Flow, limits: Limits, writer: FrameWriter) -> None:
        self._cap = cap
        salt = os.urandom(4).hex()
        self._by_stream: dict[str, Output] = {}
        self._by_media: dict[str, Output] = {}
        self.main: Output | None = None
        for number, facts in enumerate(cap.outputs):
            stream_id = f"resp-{salt}-{number}"
            output = Output(facts, stream_id, flow, limits, writer)
            self._by_stream[stream_id] = self._by_media[facts.media_urn] = output
            if facts.is_main:
                self.main = output

    def named(self, media_urn: str) -> Output:
        """Return the output the manifest declares with this media URN. Raises LocalProtocolError."""
        output = self._by_media.get(str(MediaUrn.parse(media_urn)))
        if output is None:
            raise LocalProtocolError(
                f"cap {self._cap.text!r} declares no output {media_urn!r}, only {list(self._by_media)}"
            )
        return output

    def grant(self, stream_id: str | None, credit: int) -> bool:
        """Take a grant. One that names no stream counts if exactly one is open. False if it is for none."""
        if stream_id is None:
            named = [output for output in self._by_stream.values() if output.is_open]
        else:
            named = [output for output in (self._by_stream.get(stream_id),) if output is not None]
        if len(named) != 1:
            return False
        named[0]._gate.grant(credit)
        return True

    def flush_within_credit(self) -> None:
        """Send what every output holds back, as far as that needs no waiting."""
        for output in self._by_stream.values():
            output.flush_within_credit()

    def close(self, error: CapdagError) -> None:
        """Fail whoever writes or waits for credit."""
        for output in self._by_stream.values():
            output._gate.close(error)

    def finish(self) -> None:
        """End every stream in the order of declaration."""
        for output in self._by_stream.values():
            output.finish()
