from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    CreditViolationError,
    Frame,
    FrameType,
    FrameView,
    InStream,
    InStreams,
    ItemReader,
    ReceiveWindow,
    SendWindow,
    decode_value,
    encode_value,
    fnv1a_64,
    item_payloads,
    scalar_payloads,
    view_of,
)
from capdag.wire.streams import BrokenStreamError, StreamRule


def start(stream_id: str = "s", **fields: Any) -> FrameView:
    return view_of(Frame(FrameType.STREAM_START, 1, stream_id=stream_id, media_urn="media:octets", **fields))


def chunk(index: int, payload: bytes, stream_id: str = "s", **fields: Any) -> FrameView:
    checksum = fields.pop("checksum", fnv1a_64(payload))
    return view_of(
        Frame(FrameType.CHUNK, 1, stream_id=stream_id, payload=payload, chunk_index=index, checksum=checksum, **fields)
    )


def end(count: int | None, stream_id: str = "s") -> FrameView:
    return view_of(Frame(FrameType.STREAM_END, 1, stream_id=stream_id, chunk_count=count))


def opened(initial_credit: int = 32, **fields: Any) -> InStream:
    return InStreams(initial_credit).start(start(**fields))


def test_a_scalar_stream_gives_a_value_a_chunk() -> None:
    stream = opened()
    assert stream.chunk(chunk(0, encode_value(b"ab"))).values == [b"ab"]
    assert stream.chunk(chunk(1, encode_value("é"))).values == ["é"]
    stream.end(end(2))


@pytest.mark.parametrize(
    ("view", "complaint"),
    [
        (chunk(1, b"\x00"), "CHUNK 1 came where 0 was due"),
        (chunk(0, b"\x00", checksum=1), "wrong checksum"),
        (chunk(0, b"raw bytes"), "not one strict CBOR item"),
        (chunk(0, b"\x00\x00"), "1 bytes more than one item"),
    ],
)
def test_bad_chunks(view: FrameView, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        opened().chunk(view)


def test_a_broken_rule_is_named() -> None:
    broken = {
        StreamRule.INDEX: lambda stream: stream.chunk(chunk(1, b"\x00")),
        StreamRule.CHECKSUM: lambda stream: stream.chunk(chunk(0, b"\x00", checksum=1)),
        StreamRule.COUNT: lambda stream: stream.end(end(1)),
        StreamRule.ITEM: lambda stream: stream.chunk(chunk(0, b"\x00\x00")),
        StreamRule.LIFE: lambda stream: (stream.end(end(0)), stream.end(end(0))),
    }
    assert set(broken) == set(StreamRule) - {StreamRule.OUTPUT}  # test_answers.py
    for rule, act in broken.items():
        with pytest.raises(BrokenStreamError) as caught:
            act(opened(is_sequence=rule is StreamRule.ITEM))
        assert caught.value.rule is rule


def test_stream_life() -> None:
    streams = InStreams(32, max_streams=2)
    with pytest.raises(RemoteProtocolError, match="never started"):
        streams.of(chunk(0, b"\x00"))
    stream = streams.start(start())
    with pytest.raises(RemoteProtocolError, match="second STREAM_START"):
        streams.start(start())
    streams.start(start("t"))
    with pytest.raises(RemoteProtocolError, match="more than 2 streams"):
        streams.start(start("u"))
    stream.end(end(0))
    with pytest.raises(RemoteProtocolError, match="STREAM_END after STREAM_END on stream 's'"):
        stream.end(end(0))
    with pytest.raises(RemoteProtocolError, match="CHUNK after STREAM_END"):
        stream.chunk(chunk(0, b"\x00"))
    with pytest.raises(RemoteProtocolError, match="stream 't' is open"):
        streams.check_ended()


def test_the_count_of_a_stream_is_checked() -> None:
    with pytest.raises(RemoteProtocolError, match="chunk_count 3 after 0"):
        opened().end(end(3))
    opened().end(end(None))


def test_a_sequence_item_over_several_chunks() -> None:
    stream = opened(is_sequence=True, initial_credit=8)
    item = {"text": "x" * 100}
    pieces = item_payloads(item, 40)
    assert len(pieces) == 3
    first = stream.chunk(chunk(0, pieces[0], meta={"n": 1}))
    assert (first.values, first.owed) == ([], 1)
    assert stream.chunk(chunk(1, pieces[1])).owed == 0
    with pytest.raises(RemoteProtocolError, match="inside an item"):
        stream.end(end(2))
    last = stream.chunk(chunk(2, pieces[2]))
    assert last.values == [item]
    assert last.meta == {"n": 1}


@pytest.mark.parametrize("pieces", [[b"\x00\x00"], [b"\x00\x61"], [b"\x62a", b"b\x00"]])
def test_an_item_begins_on_a_fresh_chunk(pieces: list[bytes]) -> None:
    stream = opened(is_sequence=True)
    *before, last = pieces
    for index, payload in enumerate(before):
        stream.chunk(chunk(index, payload))
    with pytest.raises(BrokenStreamError, match="an item begins in a CHUNK that holds the end of another"):
        stream.chunk(chunk(len(before), last))


def test_over_the_window_is_a_credit_violation() -> None:
    stream = opened(initial_credit=2)
    stream.chunk(chunk(0, b"\x00"))
    stream.chunk(chunk(1, b"\x00"))
    with pytest.raises(CreditViolationError):
        stream.chunk(chunk(2, b"\x00"))


@pytest.mark.parametrize(("window", "grants"), [(32, 16), (7, 3), (3, 1), (2, 1), (1, 1)])
def test_grants_come_at_half_the_window(window: int, grants: int) -> None:
    receiver = ReceiveWindow(window)
    assert [receiver.consume() for _ in range(grants)] == [0] * (grants - 1) + [grants]
    receiver.consume() if grants > 1 else None
    assert receiver.flush() == (1 if grants > 1 else 0)


def test_a_grant_never_lifts_the_sender_above_its_window() -> None:
    sender = SendWindow(2)
    assert sender.take()
    assert sender.take()
    assert not sender.take()
    sender.grant(100)
    assert sender.remaining == 2


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 300))
def test_unequal_windows_never_starve_when_the_receiver_flushes(sent: int, received: int, total: int) -> None:
    sender, receiver = SendWindow(sent), ReceiveWindow(received)
    done = 0
    while done < total:
        burst = 0
        while burst < received and done + burst < total and sender.take():  # a router holds it to the receiver's window
            assert receiver.arrive()
            burst += 1
        assert burst, "both sides wait"
        for _ in range(burst):
            sender.grant(receiver.consume())
        sender.grant(receiver.flush())
        done += burst


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(st.lists(_values, max_size=6), st.integers(1, 50))
def test_items_survive_any_cut(items: list[Any], max_chunk: int) -> None:
    reader = ItemReader()
    found = [value for item in items for piece in item_payloads(item, max_chunk) for value in reader.feed(piece)]
    assert found == items
    assert not reader.inside_item


@given(st.lists(_values, max_size=6))
def test_several_items_in_one_payload(items: list[Any]) -> None:
    assert ItemReader().feed(b"".join(map(encode_value, items))) == items


@given(st.binary(max_size=100))
def test_any_fragment_gives_items_or_a_remote_error(data: bytes) -> None:
    reader = ItemReader(max_item=50)
    try:
        for byte in data:
            reader.feed(bytes((byte,)))
    except RemoteProtocolError:
        return
    assert len(data) <= 50 or not reader.inside_item or reader.feed(b"") == []


def test_an_item_over_the_bound_names_the_setting() -> None:
    reader = ItemReader(max_item=1000)
    pieces = item_payloads(bytes(5000), 100)
    for piece in pieces[:10]:
        reader.feed(piece)
    with pytest.raises(RemoteProtocolError, match="max_item"):
        reader.feed(pieces[10])


@given(st.binary(max_size=1000), st.integers(1, 64))
def test_bytes_are_split_and_joined(data: bytes, max_chunk: int) -> None:
    pieces = [decode_value(payload) for payload in scalar_payloads(data, max_chunk)]
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= max_chunk for piece in pieces)


@given(st.text(max_size=300), st.integers(1, 64))
def test_text_is_split_between_characters(text: str, max_chunk: int) -> None:
    pieces = [decode_value(payload) for payload in scalar_payloads(text, max_chunk)]
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= max(max_chunk, 4) for piece in pieces)


def test_lists_and_maps_go_piece_by_piece() -> None:
    assert [decode_value(p) for p in scalar_payloads([1, "a"], 9)] == [1, "a"]
    assert [decode_value(p) for p in scalar_payloads({"k": 1}, 9)] == [["k", 1]]
    assert list(scalar_payloads(b"", 9)) == list(scalar_payloads([], 9)) == []
    assert [decode_value(p) for p in scalar_payloads(None, 9)] == [None]


def test_empty_chunks_of_a_sequence_are_granted_when_they_come() -> None:
    stream = opened(4, is_sequence=True)
    granted = 0
    for index in range(20):
        received = stream.chunk(chunk(index, b""))
        assert (received.values, received.owed) == ([], 0)
        granted += received.grant_now
    assert granted == 20
    received = stream.chunk(chunk(20, b"\x01", meta={"n": 1}))
    assert (received.values, received.meta, received.owed, received.grant_now) == ([1], {"n": 1}, 1, 0)


@pytest.mark.parametrize("kind", [FrameType.CHUNK, FrameType.STREAM_END])
def test_a_frame_without_a_stream_is_not_one_of_the_stream_without_a_name(kind: FrameType) -> None:
    streams = InStreams(4)
    streams.start(start(""))
    nameless = Frame(kind, 1, payload=b"\x00", chunk_index=0, checksum=fnv1a_64(b"\x00"))
    with pytest.raises(BrokenStreamError, match="for stream None, which was never started"):
        streams.of(view_of(nameless))
    assert streams.of(chunk(0, b"\x00", "")).head.stream_id == ""
