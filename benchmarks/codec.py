"""What checking, decoding and encoding a frame cost beside cbor2 itself, and beside the public package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2

from capdag.wire import (
    RESPONSE,
    Frame,
    FrameType,
    LogRecord,
    credit_frame,
    decode_frame,
    encode_frame,
    end_frame,
    fnv1a_64,
    inspect,
    log_frame,
)
from capdag.wire.cbor import STRICT

from .rounds import measure, report, time_loops

ROOT = Path(__file__).parents[1]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"

ROUNDS = 41
"""Short rounds and many: on a machine that does other things too, most of them are left alone."""

BASE_IN, BASE_OUT = "cbor2 decode, our strict knobs", "cbor2 encode"


def _chunk(size: int) -> Frame:
    payload = cbor2.dumps(bytes(size))
    return Frame(
        FrameType.CHUNK, bytes(range(16)), 7, stream_id="resp-01234567-0", payload=payload, routing_id=3, chunk_index=5,
        checksum=fnv1a_64(payload),
    )  # fmt: skip


def _frames() -> dict[str, tuple[Frame, int]]:
    """Frames by title, with the loops of a round."""
    rid, cap = bytes(range(16)), 'cap:chat;in="media:chat-request";model=m;out="media:chat-event;list"'
    return {
        "CHUNK of a token, 30 B": (_chunk(30), 500),
        "CHUNK, 262,144 B": (_chunk(262_144), 30),
        "LOG, once a request or less": (log_frame(rid, LogRecord("progress", "half", 0.5), xid=3, seq=4), 500),
        "CREDIT, once in 16 CHUNKs": (credit_frame(rid, "resp-01234567-0", 16, RESPONSE, xid=3), 500),
        "REQ, once a request": (Frame(FrameType.REQ, rid, cap=cap, payload=b"", routing_id=3), 500),
        "END, once a request": (end_frame(rid, xid=3, seq=9), 500),
    }


def _micros(call: Callable[[Any], object], argument: object, loops: int) -> Callable[[], float]:
    def run(count: int) -> None:
        for _ in range(count):
            call(argument)

    return lambda: time_loops(run, loops) * 1e6


class PublicPackage:
    """The public package in its own environment: each question gives two figures, and answers for the second."""

    def __init__(self) -> None:
        command = [str(PEER_PYTHON), "-P", str(ROOT / "benchmarks" / "codec_peer.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def micros(self, body: bytes, loops: int, figure: int) -> Callable[[], float]:
        """Return the call that measures decoding (figure 0) or encoding (figure 1)."""

        def run() -> float:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"body": body.hex(), "loops": loops}) + "\n")
            self._process.stdin.flush()
            seconds: list[float] = json.loads(self._process.stdout.readline())
            return seconds[figure] / loops * 1e6

        return run

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _report(title: str, frame: Frame, loops: int, public: PublicPackage) -> None:
    body, fields = encode_frame(frame), frame.fields()
    decoders = {
        BASE_IN: _micros(lambda data: cbor2.loads(data, **STRICT), body, loops),
        "inspect": _micros(inspect, body, loops),
        "decode_frame": _micros(decode_frame, body, loops),
        "public package": public.micros(body, loops, 0),
    }
    report(f"decode {title}", "us", measure(decoders, ROUNDS), BASE_IN)
    encoders = {
        BASE_OUT: _micros(cbor2.dumps, fields, loops),
        "encode_frame": _micros(encode_frame, frame, loops),
        "public package": public.micros(body, loops, 1),
    }
    report(f"encode {title}", "us", measure(encoders, ROUNDS), BASE_OUT)


def main() -> None:
    """Print the codec tables."""
    if not PEER_PYTHON.exists():
        sys.exit("the public package has no environment here: run the README's test command, which makes it")
    public = PublicPackage()
    try:
        for title, (frame, loops) in _frames().items():
            _report(title, frame, loops, public)
    finally:
        public.close()
