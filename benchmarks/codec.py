"""What checking, decoding and encoding a frame cost beside cbor2 itself, and beside the public package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2

from capdag.errors import AttributionClass
from capdag.wire import (
    RESPONSE,
    USER_CANCEL,
    Failure,
    Frame,
    FrameType,
    LogRecord,
    cancel_frame,
    credit_frame,
    decode_frame,
    encode_frame,
    end_frame,
    err_frame,
    fnv1a_64,
    inspect,
    log_frame,
)
from capdag.wire.cbor import STRICT

from .rounds import measure, report, time_loops

ROOT = Path(__file__).parents[1]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"

ROUNDS = 31
"""Short rounds and many: on a machine that does other things too, most of them are left alone."""

BASE_IN, BASE_OUT = "cbor2 decode, our strict knobs", "cbor2 encode"


FRAMES = 50
"""Frames of a type that take turns, as on a link: CHUNKs and CREDITs of one stream, others each of a request of its
own. Their seq, ids, streams and texts differ."""


def _chunk(number: int, size: int) -> Frame:
    payload = cbor2.dumps(bytes(size))
    return Frame(
        FrameType.CHUNK, bytes(range(16)), number, stream_id="resp-01234567-0", payload=payload, routing_id=3,
        chunk_index=number, checksum=fnv1a_64(payload),
    )  # fmt: skip


def _kinds() -> dict[str, Callable[[int], Frame]]:
    """Makers of frames, by what they make."""
    cap = 'cap:chat;in="media:chat-request";model=m;out="media:chat-event;list"'

    def rid(number: int) -> bytes:
        return sha256(b"%d" % number).digest()[:16]

    def stream(number: int) -> str:
        return f"resp-{rid(number).hex()[:8]}-0"

    def start(number: int) -> Frame:
        return Frame(
            FrameType.STREAM_START, rid(number), stream_id=stream(number), media_urn="media:chat-event;list",
            routing_id=900 + number, is_sequence=True,
        )  # fmt: skip

    def log(number: int) -> Frame:
        return log_frame(
            rid(number), LogRecord("progress", f"{number} done", number / 50), xid=900 + number, seq=number
        )

    def err(number: int) -> Frame:
        failure = Failure("INVALID_REQUEST", AttributionClass.INPUT, f"line {number} is no JSON: repair it")
        return err_frame(rid(number), failure, xid=900 + number, seq=number)

    return {
        "CHUNK of a token, 30 B": lambda number: _chunk(number, 30),
        "CHUNK, 262,144 B": lambda number: _chunk(number, 262_144),
        "CREDIT, once in 16 CHUNKs": lambda number: credit_frame(
            rid(0), "resp-01234567-0", 1 + number % 16, RESPONSE, xid=3
        ),
        "REQ": lambda number: Frame(FrameType.REQ, rid(number), cap=cap, payload=b"", routing_id=900 + number),
        "STREAM_START": start,
        "STREAM_END": lambda number: Frame(
            FrameType.STREAM_END, rid(number), 300 + number, stream_id=stream(number), routing_id=900 + number,
            chunk_count=300 + number,
        ),
        "END": lambda number: end_frame(rid(number), xid=900 + number, seq=300 + number),
        "LOG": log,
        "ERR": err,
        "HEARTBEAT": lambda number: Frame(FrameType.HEARTBEAT, rid(number)),
        "CANCEL": lambda number: cancel_frame(rid(number), USER_CANCEL, xid=900 + number),
    }  # fmt: skip


def _micros(call: Callable[[Any], object], arguments: Sequence[object], laps: int) -> Callable[[], float]:
    def run(_: int) -> None:
        for _lap in range(laps):
            for argument in arguments:
                call(argument)

    return lambda: time_loops(run, laps * len(arguments)) * 1e6


class PublicPackage:
    """The public package in its own environment: each question gives two figures, and answers for the second."""

    def __init__(self) -> None:
        command = [str(PEER_PYTHON), "-P", str(ROOT / "benchmarks" / "codec_peer.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def micros(self, bodies: Sequence[bytes], laps: int, figure: int) -> Callable[[], float]:
        """Return the call that measures decoding (figure 0) or encoding (figure 1)."""

        def run() -> float:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"bodies": [body.hex() for body in bodies], "laps": laps}) + "\n")
            self._process.stdin.flush()
            seconds: list[float] = json.loads(self._process.stdout.readline())
            return seconds[figure] / (laps * len(bodies)) * 1e6

        return run

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _report(title: str, frames: list[Frame], public: PublicPackage) -> None:
    bodies, maps = [encode_frame(frame) for frame in frames], [frame.fields() for frame in frames]
    laps = 10 if len(frames) == FRAMES else 1
    decoders = {
        BASE_IN: _micros(lambda data: cbor2.loads(data, **STRICT), bodies, laps),
        "inspect": _micros(inspect, bodies, laps),
        "decode_frame": _micros(decode_frame, bodies, laps),
        "public package": public.micros(bodies, laps, 0),
    }
    report(f"decode {title}", "us", measure(decoders, ROUNDS), BASE_IN)
    encoders = {
        BASE_OUT: _micros(cbor2.dumps, maps, laps),
        "encode_frame": _micros(encode_frame, frames, laps),
        "public package": public.micros(bodies, laps, 1),
    }
    report(f"encode {title}", "us", measure(encoders, ROUNDS), BASE_OUT)


def main() -> None:
    """Print the codec tables."""
    if not PEER_PYTHON.exists():
        sys.exit("the public package has no environment here: run the README's test command, which makes it")
    public = PublicPackage()
    try:
        for title, make in _kinds().items():
            _report(title, [make(number) for number in range(5 if "262,144" in title else FRAMES)], public)
    finally:
        public.close()
