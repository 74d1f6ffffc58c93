"""What a frame or an item of any shape takes: while it is read at most `MEMORY_PER_BYTE`, and afterwards its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from capdag.wire import Frame, FrameType, ItemReader, decode_value, fnv1a_64, inspect, view_of, with_routing_id
from fuzz.targets import MEMORY_PER_BYTE

SHAPES = {
    "empty lists": b"\x80",
    "empty maps": b"\xa0",
    "lists in lists": b"\x81" * 12 + b"\x80",
    "maps in maps": b"\xa1\x00" * 12 + b"\xa0",
    "maps of one pair": b"\xa1\x00\x00",
    "maps of two": b"\xa2\x00\x80\x01\x80",
    "numbers": b"\x19\x12\x34",
    "texts": b"\x62ab",
}
SIZE = 20_000


def many(shape: bytes, size: int = SIZE) -> bytes:
    count = size // len(shape)
    return b"\x9a" + count.to_bytes(4, "big") + shape * count


def a_chunk(items: bytes) -> bytes:
    """A CHUNK that has them in its meta."""
    payload = b"\x00"
    frame = Frame(FrameType.CHUNK, 5, stream_id="s", payload=payload, chunk_index=0, checksum=fnv1a_64(payload))
    return b"\xa9" + view_of(frame).body[1:] + b"\x05\xa1\x61a" + items


def measured(read: Callable[[bytes], object], data: bytes) -> tuple[int, int, object]:
    """Return the most bytes taken while reading, those kept, and what was read."""
    tracemalloc.start()
    try:
        found = read(data)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most, kept, found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_reading_takes_no_more_than_is_stated(shape: bytes) -> None:
    items = many(shape)
    readers: list[tuple[Callable[[bytes], object], bytes]] = [
        (inspect, a_chunk(items)), (decode_value, items), (ItemReader().feed, items),
    ]  # fmt: skip
    for read, data in readers:
        most, _, _ = measured(read, data)
        assert most < MEMORY_PER_BYTE * len(data)


@pytest.mark.parametrize("size", [2000, SIZE])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_frame_that_waits_takes_little_more_than_its_bytes(shape: bytes, size: int) -> None:
    body = a_chunk(many(shape, size))
    times = SIZE // size

    def read(data: bytes) -> list[Any]:
        view = inspect(data)
        assert view.payload_size == 1
        assert view.meta.keys() == {"a"}
        return [view, with_routing_id(view, 7)]

    _, kept, found = measured(lambda data: [read(data) for _ in range(times)], body)
    assert kept < times * 2 * len(body)  # the routed copies, and the lists and maps that Python keeps for the next ones
    assert isinstance(found, list)
    plain, routed = found[0]
    assert plain.fields == cbor2.loads(body)
    assert routed.fields == {**plain.fields, 13: 7}
    assert plain.frame() == Frame.of(plain.fields)
