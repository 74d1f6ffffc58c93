"""Cutting and joining what is written, and the encoder that takes a short cut."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.cartridge._chunks import COALESCE_BYTES, COALESCE_SECONDS, ChunkEncoder, Coalescer
from capdag.errors import LocalProtocolError
from capdag.wire import (
    Frame,
    FrameType,
    ItemReader,
    decode_value,
    fnv1a_64,
    item_payloads,
    pack,
    scalar_payloads,
    view_of,
)

UINTS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
IDS = st.one_of(st.binary(min_size=16, max_size=16), UINTS)


@given(IDS, st.text(max_size=40), st.one_of(st.none(), IDS), UINTS, UINTS, st.binary(max_size=400), UINTS)
def test_the_short_cut_writes_what_the_codec_writes(
    rid: int | bytes, stream_id: str, xid: int | bytes | None, seq: int, index: int, payload: bytes, checksum: int
) -> None:
    general = Frame(
        FrameType.CHUNK, rid, seq, stream_id=stream_id, payload=payload, routing_id=xid, chunk_index=index,
        checksum=checksum,
    )  # fmt: skip
    encoder = ChunkEncoder(rid, stream_id, xid, 1_000_000)
    assert encoder.encode(seq, index, payload, checksum) == pack(view_of(general), 1_000_000)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 255, 256, 65_535, 65_536, 262_149])
def test_the_short_cut_at_the_edges_of_lengths(size: int) -> None:
    payload = bytes(size)
    general = Frame(
        FrameType.CHUNK, b"r" * 16, 5, stream_id="resp-00112233-0", payload=payload, routing_id=70_000, chunk_index=24,
        checksum=fnv1a_64(payload),
    )  # fmt: skip
    view = view_of(general)
    encoder = ChunkEncoder(b"r" * 16, "resp-00112233-0", 70_000, len(view.body))
    assert encoder.encode(5, 24, payload, fnv1a_64(payload)) == pack(view, len(view.body))
    tight = ChunkEncoder(b"r" * 16, "resp-00112233-0", 70_000, len(view.body) - 1)
    with pytest.raises(LocalProtocolError, match="max_frame"):
        tight.encode(5, 24, payload, fnv1a_64(payload))


class Model:
    """What a stream of joined writes must look like."""

    def __init__(self) -> None:
        self.coalescer = Coalescer()
        self.written = b""
        self.sent: list[bytes] = []
        self.oldest: float | None = None

    def write(self, data: bytes, now: float) -> None:
        self.written += data
        held = len(self.written) - sum(map(len, self.sent))
        if self.oldest is None and data:
            self.oldest = now
        aged = self.oldest is not None and now - self.oldest >= COALESCE_SECONDS
        due = bytes(self.coalescer.add(data, now))
        assert bool(due) == (aged or held >= COALESCE_BYTES)
        if due:
            self.oldest = None
            self.sent.append(due)


@given(st.lists(st.tuples(st.binary(max_size=3000), st.floats(0, 0.03))))
def test_joined_writes_lose_nothing_and_wait_for_the_rule(writes: list[tuple[bytes, float]]) -> None:
    model = Model()
    now = 1000.0
    for data, pause in writes:
        now += pause
        model.write(data, now)
    assert b"".join(model.sent) + model.coalescer.take() == model.written
    assert model.coalescer.take() == b""


def test_ten_bytes_at_a_time_give_4100() -> None:
    coalescer = Coalescer()
    sizes = [len(coalescer.add(b"0123456789", 0.0)) for _ in range(1000)]
    assert [size for size in sizes if size] == [4100, 4100]


def test_a_large_write_goes_as_it_is() -> None:
    data = bytes(5000)
    assert Coalescer().add(data, 0.0) is data


@given(st.one_of(st.binary(max_size=3000), st.text(max_size=1000)), st.integers(4, 500))
def test_scalars_are_cut_and_joined_whole(value: bytes | str, max_chunk: int) -> None:
    payloads = list(scalar_payloads(value, max_chunk))
    assert type(value)().join(map(decode_value, payloads)) == value
    assert all(len(payload) <= max_chunk + 5 for payload in payloads)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=300) | st.text(max_size=100),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=10,
)


@given(st.lists(VALUES, max_size=8), st.integers(1, 200))
def test_items_are_cut_and_joined_whole(items: list[object], max_chunk: int) -> None:
    reader = ItemReader()
    found = []
    for item in items:
        assert not reader.inside_item, "an item begins on a fresh CHUNK"
        payloads = item_payloads(item, max_chunk)
        assert b"".join(payloads) == cbor2.dumps(item)
        assert all(0 < len(payload) <= max_chunk for payload in payloads)
        for payload in payloads:
            found += reader.feed(payload)
    assert found == items
