"""A cartridge spoken to directly: blocking reads and writes on its pipes, which are as large as our host makes them,
and nothing in between."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from capdag.transport._pipes import PIPE_SIZE
from capdag.wire import (
    DEFAULT_LIMITS,
    RESPONSE,
    Frame,
    FrameSplitter,
    FrameType,
    FrameView,
    NetworkPolicy,
    body_end_frame,
    credit_frame,
    encode_value,
    fnv1a_64,
    hello_frame,
    inspect,
    pack,
    policy_frame,
    view_of,
)

ROOT = Path(__file__).parents[1]


class Spoken:
    """One running cartridge, past HELLO and POLICY. Every CHUNK that comes is summed and granted."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            list(command), cwd=folder, env={**os.environ, **environment}, stdin=pipe, stdout=pipe, bufsize=0
        )
        for end in (self._child.stdin, self._child.stdout):
            assert end is not None
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._splitter = FrameSplitter()
        self._ready: list[FrameView] = []
        self._rid = 0
        self._send(hello_frame(DEFAULT_LIMITS))
        self.next()
        self._send(policy_frame(NetworkPolicy.NO_TELEMETRY))

    def _send(self, *frames: Frame) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(b"".join(pack(view_of(frame), DEFAULT_LIMITS.max_frame) for frame in frames))

    def next(self) -> FrameView:
        """Return the next frame."""
        assert self._child.stdout is not None
        while not self._ready:
            data = self._child.stdout.read(1 << 20)
            assert data, "the cartridge has ended"
            self._ready = [inspect(body) for body in self._splitter.feed(data)]
        return self._ready.pop(0)

    def ask(self, cap: str, media: str, data: bytes) -> None:
        """Send a whole small request."""
        self._rid += 1
        rid, payload = self._rid.to_bytes(16, "big"), encode_value(data)
        self._send(
            Frame(FrameType.REQ, rid, cap=cap, content_type="application/cbor", payload=b""),
            Frame(FrameType.STREAM_START, rid, stream_id="a", media_urn=media, is_sequence=False),
            Frame(FrameType.CHUNK, rid, stream_id="a", payload=payload, chunk_index=0, checksum=fnv1a_64(payload)),
            Frame(FrameType.STREAM_END, rid, stream_id="a", chunk_count=1),
            body_end_frame(rid),
        )

    def answer(self) -> list[bytes]:
        """Return the payloads of the answer to what was asked last."""
        payloads: list[bytes] = []
        pending, step = 0, DEFAULT_LIMITS.initial_credit // 2
        while True:
            view = self.next()
            assert view.type is not FrameType.ERR, view.meta
            if view.type is FrameType.END:
                return payloads
            if view.type is FrameType.CHUNK:
                payload = view.fields[6]
                assert fnv1a_64(payload) == view.fields[16]
                payloads.append(payload)
                pending += 1
                if pending == step:
                    self._send(credit_frame(view.id, view.stream_id or "", pending, RESPONSE))
                    pending = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()
