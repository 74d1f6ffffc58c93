"""A cartridge that costs as little as it can, so that what is between it and its caller is what a benchmark measures.

`python -m benchmarks.lean NUMBER WINDOW MAX_CHUNK` serves `cap_of(NUMBER)`. The first CHUNK of a request is its script:

    echo            give the script back
    blast N SIZE S  answer with N CHUNKs of SIZE to SIZE + S bytes in blocks as large as the window allows
    tokens N MICROS answer with N CHUNKs, one a write, each with the time of its sending, MICROS apart
    sink N          take N more CHUNKs in, then answer
    hold N          answer once N such requests are there
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

from capdag.wire import (
    ALL_POOL,
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    REQUEST,
    Frame,
    FrameType,
    FrameView,
    MessageId,
    PoolState,
    credit_frame,
    decode_value,
    encode_frame,
    encode_value,
    end_frame,
    fnv1a_64,
    hello_frame,
    inspect,
)

STREAM = "s"


def cap_of(number: int) -> str:
    """Return the cap that a cartridge serves."""
    return f"cap:in=media:octets;lean={number};out=media:octets"


def cap_object(urn: str, media: str) -> dict[str, object]:
    """Return a manifest cap object from bytes to bytes."""
    argument = {"media_urn": media, "name": "input", "required": True, "sources": [{"stdin": media}]}
    output = {"media_urn": media, "name": "output", "output_description": "bytes"}
    alias = "identity" if urn == IDENTITY_CAP else "lean"
    return {"urn": urn, "title": "Lean", "aliases": [alias], "args": [argument], "outputs": [output]}


def manifest(number: int) -> dict[str, object]:
    """Return the manifest of a cartridge."""
    caps = [cap_object(IDENTITY_CAP, "media:"), cap_object(cap_of(number), "media:octets")]
    return {
        "name": f"lean{number}", "version": "1.0.0", "channel": "release", "registry_url": None,
        "description": "for measuring", "cap_groups": [{"name": "lean", "caps": caps}],
    }  # fmt: skip


def packed(frame: Frame) -> bytes:
    """Return a frame as it goes over a link."""
    body = encode_frame(frame)
    return len(body).to_bytes(4, "big") + body


def stream(rid: MessageId, xid: MessageId | None, payloads: Iterator[bytes], seq: int) -> Iterator[bytes]:
    """Encode a stream with its start and its end; `seq` is that of the start."""
    start = Frame(FrameType.STREAM_START, rid, stream_id=STREAM, media_urn="media:octets", routing_id=xid, seq=seq)
    start.is_sequence = False
    yield packed(start)
    index = -1
    for index, payload in enumerate(payloads):
        yield packed(chunk(rid, xid, payload, index, seq + 1 + index))
    end = Frame(FrameType.STREAM_END, rid, stream_id=STREAM, chunk_count=index + 1, routing_id=xid, seq=seq + 2 + index)
    yield packed(end)


def chunk(rid: MessageId, xid: MessageId | None, payload: bytes, index: int, seq: int) -> Frame:
    """Build one CHUNK."""
    return Frame(
        FrameType.CHUNK, rid, stream_id=STREAM, payload=payload, chunk_index=index, checksum=fnv1a_64(payload),
        routing_id=xid, seq=seq,
    )  # fmt: skip


def count_frames(buffer: bytes, begin: int, most: int) -> tuple[int, int, int]:
    """Return how many whole frames there are, up to `most`; where the last of them begins, and where the rest does."""
    count, last = 0, begin
    while count < most and len(buffer) >= begin + 4:
        end = begin + 4 + int.from_bytes(buffer[begin : begin + 4], "big")
        if end > len(buffer):
            break
        count, last, begin = count + 1, begin, end
    return count, last, begin


class Lean:
    """The cartridge: blocking reads and writes, one request after another except under `hold`."""

    def __init__(self, number: int, window: int, max_chunk: int) -> None:
        self._number = number
        self._limits = DEFAULT_LIMITS._replace(initial_credit=window, max_chunk=max_chunk)
        self._buffer, self._position = b"", 0
        self._scripts: dict[tuple[MessageId, MessageId | None], bytes] = {}
        self._held: list[tuple[MessageId, MessageId | None]] = []
        self._credit = 0

    def run(self) -> None:
        """Serve until stdin ends."""
        while self._fill():
            self._take_all()

    def _fill(self) -> bool:
        data = os.read(0, 1 << 18)
        self._buffer, self._position = self._buffer[self._position :] + data, 0
        return bool(data)

    def _take_all(self) -> None:
        while True:
            count, _, end = count_frames(self._buffer, self._position, 1)
            if count == 0:
                return
            body, self._position = self._buffer[self._position + 4 : end], end
            self._take(inspect(body))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def _take(self, view: FrameView) -> None:
        key = view.id, view.xid
        if view.type is FrameType.HELLO:
            pools = dict.fromkeys([IDENTITY_CAP, cap_of(self._number), ALL_POOL], PoolState(65_536, 65_536))
            said = json.dumps(manifest(self._number)).encode()
            self._write(packed(hello_frame(self._limits, manifest=said, pools=pools)))
        elif view.type is FrameType.HEARTBEAT:
            self._write(packed(Frame(FrameType.HEARTBEAT, view.id)))
        elif view.type is FrameType.REQ and view.fields[10] in (IDENTITY_CAP, cap_of(self._number)):
            self._scripts[key] = b""
        elif view.type is FrameType.CHUNK and key in self._scripts:
            self._scripts[key] = view.fields[6]
            if decode_value(view.fields[6]).startswith(b"sink "):
                self._sink(view)
        elif view.type is FrameType.CREDIT:
            self._credit += view.fields[19]
        elif view.type is FrameType.END and key in self._scripts:
            self._do(view.id, view.xid, self._scripts.pop(key))

    def _do(self, rid: MessageId, xid: MessageId | None, payload: bytes) -> None:
        name, *numbers = decode_value(payload).split(b" ")
        if name == b"blast":
            self._blast(rid, xid, *map(int, numbers))
        elif name == b"tokens":
            self._tokens(rid, xid, *map(int, numbers))
        elif name == b"hold":
            self._held.append((rid, xid))
            if len(self._held) == int(numbers[0]):
                self._write(b"".join(self._answer(*key, payload) for key in self._held))
                self._held.clear()
        else:
            self._write(self._answer(rid, xid, payload))

    def _answer(self, rid: MessageId, xid: MessageId | None, payload: bytes) -> bytes:
        return b"".join(stream(rid, xid, iter([payload]), 0)) + packed(end_frame(rid, xid=xid, seq=3))

    def _blast(self, rid: MessageId, xid: MessageId | None, count: int, size: int, spread: int) -> None:
        payloads = [encode_value(bytes(size + more)) for more in range(spread + 1)]
        start, *chunks, end = stream(rid, xid, (payloads[index % len(payloads)] for index in range(count)), 0)
        self._write(start)
        self._credit, sent = self._limits.initial_credit, 0
        while sent < count:
            while self._credit == 0:
                self._fill()
                self._take_all()
            block = chunks[sent : sent + self._credit]
            self._credit -= len(block)
            sent += len(block)
            self._write(b"".join(block))
        self._write(end + packed(end_frame(rid, xid=xid, seq=count + 2)))

    def _tokens(self, rid: MessageId, xid: MessageId | None, count: int, micros: int) -> None:
        start, _ = stream(rid, xid, iter([]), 0)
        self._write(start)
        for index in range(count):
            time.sleep(micros / 1e6)
            payload = encode_value(time.monotonic_ns().to_bytes(8, "big"))
            self._write(packed(chunk(rid, xid, payload, index, index + 1)))
        done = Frame(FrameType.STREAM_END, rid, stream_id=STREAM, chunk_count=count, routing_id=xid, seq=count + 1)
        self._write(packed(done) + packed(end_frame(rid, xid=xid, seq=count + 2)))

    def _sink(self, view: FrameView) -> None:
        """Take a body without a look at it: the frames after this one, up to the CHUNKs that were announced."""
        left = int(decode_value(view.fields[6]).split(b" ")[1])
        owed = 0
        while True:
            count, _, self._position = count_frames(self._buffer, self._position, left)
            left, owed = left - count, owed + count
            if owed * 2 >= self._limits.initial_credit:
                self._write(packed(credit_frame(view.id, STREAM, owed, REQUEST, xid=view.xid)))
                owed = 0
            if left == 0:
                return
            self._fill()


if __name__ == "__main__":
    Lean(*map(int, sys.argv[1:])).run()
