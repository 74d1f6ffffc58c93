"""What checking, decoding and encoding a frame cost beside cbor2 itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cbor2

from capdag.wire import Frame, FrameType, decode_frame, encode_frame, fnv1a_64, inspect

from .rounds import measure, report, time_loops

_STRICT: dict[str, Any] = {"allow_indefinite": False, "allow_duplicate_keys": False, "max_depth": 16}


def _chunk(size: int) -> Frame:
    payload = cbor2.dumps(bytes(size))
    return Frame(
        FrameType.CHUNK, bytes(range(16)), 7, stream_id="resp-01234567-0", payload=payload, routing_id=3, chunk_index=5,
        checksum=fnv1a_64(payload),
    )  # fmt: skip


def _micros(call: Callable[[Any], object], argument: object, loops: int) -> Callable[[], float]:
    def run(count: int) -> None:
        for _ in range(count):
            call(argument)

    return lambda: time_loops(run, loops) * 1e6


def main() -> None:
    """Print the codec table for a token-sized and a full CHUNK."""
    for size, loops in ((30, 20_000), (262_144, 300)):
        frame = _chunk(size)
        body, fields = encode_frame(frame), frame.fields()
        variants = {
            "cbor2 decode, strict knobs": _micros(lambda data: cbor2.loads(data, **_STRICT), body, loops),
            "inspect": _micros(inspect, body, loops),
            "decode_frame": _micros(decode_frame, body, loops),
        }
        report(f"decode, {size} B payload", "us", measure(variants), "cbor2 decode, strict knobs")
        encoders = {
            "cbor2 encode": _micros(cbor2.dumps, fields, loops),
            "encode_frame": _micros(encode_frame, frame, loops),
        }
        report(f"encode, {size} B payload", "us", measure(encoders), "cbor2 encode")
