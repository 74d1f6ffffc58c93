"""Runs of CHUNKs are what reading them one by one gives, whatever the bytes and wherever they are cut."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    Frame,
    FrameType,
    MessageId,
    encode_value,
    fnv1a_64,
    pack,
    view_of,
    with_routing_id,
)
from capdag.wire.blocks import BlockReader, ChunkRun, Parcel, single_frames, write_parcels
from capdag.wire.chunks import forget_streams


@pytest.fixture(autouse=True)
def _strange_streams() -> None:
    forget_streams()


MAX_FRAME = DEFAULT_LIMITS.max_frame
RIDS = (bytes(16), b"r" * 16, 7)


def chunk(rid: MessageId, seq: int, index: int, size: int, *, stream: str = "s", xid: int | None = 7) -> bytes:
    payload = encode_value(bytes(size))
    return packed(
        Frame(
            FrameType.CHUNK, rid, seq, stream_id=stream, payload=payload, chunk_index=index,
            checksum=fnv1a_64(payload), routing_id=xid,
        )
    )  # fmt: skip


def spliced(rid: MessageId, seq: int, index: int, size: int) -> bytes:
    """Return a CHUNK to which a router has added a routing id."""
    payload = encode_value(bytes(size))
    view = view_of(
        Frame(FrameType.CHUNK, rid, seq, stream_id="s", payload=payload, chunk_index=index, checksum=fnv1a_64(payload))
    )
    return pack(with_routing_id(view, 7), MAX_FRAME)


def packed(frame: Frame) -> bytes:
    return pack(view_of(frame), MAX_FRAME)


def uniform(count: int, *, first: int = 1, size: int = 30) -> list[bytes]:
    return [chunk(RIDS[0], first + number, number, size) for number in range(count)]


def read(data: bytes, *, runs: bool, step: int = 1 << 20, max_frame: int = MAX_FRAME) -> tuple[list[Parcel], str]:
    reader, parcels = BlockReader(max_frame, runs=runs), list[Parcel]()
    try:
        for start in range(0, len(data), step):
            reader.feed(data[start : start + step], parcels)
        reader.eof()
    except RemoteProtocolError as error:
        return parcels, str(error)
    return parcels, ""


def facts(data: bytes, *, runs: bool, step: int = 1 << 20) -> tuple[list[object], str]:
    parcels, end = read(data, runs=runs, step=step)
    return [(view.body, view.fields) for view in single_frames(parcels)], end


@pytest.mark.parametrize("count", [2, 3, 24, 300, 1200])
@pytest.mark.parametrize("first", [0, 20, 250, 65_400])
def test_frames_of_one_size_come_as_one_run(count: int, first: int) -> None:
    frames = uniform(count, first=first)
    single, end = facts(b"".join(frames), runs=False)
    assert (len(single), end) == (count, "")
    assert facts(b"".join(frames), runs=True) == (single, "")
    parcels, _ = read(b"".join(frames), runs=True)
    assert len(parcels) <= 3  # the stream is known from its first CHUNK, and a run begins behind a CHUNK of its own
    run = parcels[-1]
    if count > 2:
        assert isinstance(run, ChunkRun)
        assert (run.id, run.xid, run.stream_id) == (RIDS[0], 7, "s")
        assert run.last_seq == first + count - 1
        assert b"".join(run.pieces) == b"".join(frames[-run.count :])


def test_a_run_knows_its_largest_frame() -> None:
    sizes = [10, 300, 70_000, 5, 23, 24, 255, 1]
    frames = [chunk(RIDS[1], number, number, size) for number, size in enumerate([1, 1, *sizes])]
    run = read(b"".join(frames), runs=True)[0][-1]
    assert isinstance(run, ChunkRun)
    assert run.count == len(sizes) + 1
    assert run.largest_body == max(map(len, frames)) - 4
    assert run.largest_payload == len(encode_value(bytes(70_000)))


def test_frames_with_a_routing_id_behind_their_checksum_come_as_a_run() -> None:
    frames = [spliced(RIDS[0], number, number, 30) for number in range(600)]
    run = read(b"".join(frames), runs=True)[0][-1]
    assert isinstance(run, ChunkRun)
    assert (run.count, run.xid) == (599, 7)
    assert facts(b"".join(frames), runs=True) == facts(b"".join(frames), runs=False)


def test_numbers_that_fall_back_are_not_lost() -> None:
    frames = uniform(40) + uniform(3, first=1000) + uniform(40)
    run = read(b"".join(frames), runs=True)[0][-1]
    assert isinstance(run, ChunkRun)
    assert run.last_seq == 1002
    assert facts(b"".join(frames), runs=True) == facts(b"".join(frames), runs=False)


def test_a_length_over_the_limit_inside_of_a_run_is_told() -> None:
    frames = [*uniform(30), chunk(RIDS[0], 99, 30, 200), *uniform(5)]
    limit = len(frames[0])
    parcels, end = read(b"".join(frames), runs=True, max_frame=limit)
    assert len(single_frames(parcels)) == 30
    assert f"at stream offset {sum(map(len, frames[:30]))} " in end


_PIECES = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 60), st.integers(0, 400), st.sampled_from([0, 5, 23, 24, 30, 300])),
    st.tuples(
        st.just("one"), st.sampled_from(RIDS), st.sampled_from([None, 7, 2**40]), st.sampled_from(["s", "other"])
    ),
    st.tuples(st.just("beat"), st.integers(0, 9)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_PIECES, max_size=6), st.sampled_from([1 << 20, 4096, 97, 1]))
def test_any_mix_in_any_pieces_reads_the_same(pieces: list[tuple[object, ...]], step: int) -> None:
    data = b""
    for piece in pieces:
        match piece:
            case ("run", int(count), int(first), int(size)):
                data += b"".join(uniform(count, first=first, size=size))
            case ("one", (bytes() | int()) as rid, (None | int()) as xid, str(stream)):
                data += chunk(rid, 3, 2, 9, stream=stream, xid=xid)
            case _:
                data += packed(Frame(FrameType.HEARTBEAT, 5))
    assert facts(data, runs=True, step=step) == facts(data, runs=False)


@pytest.mark.parametrize("sizes", ["equal", "mixed", "spliced"])
def test_a_changed_byte_anywhere_is_judged_as_in_a_single_frame(sizes: str) -> None:
    """Every place of one frame in the midst of a run is changed, to several values."""
    chance = random.Random(sizes)
    before, after = uniform(30, first=40), uniform(40, first=71)
    if sizes == "mixed":
        after = [chunk(RIDS[0], 71 + number, number, chance.randrange(50)) for number in range(40)]
    frame = chunk(RIDS[0], 70, 30, 30)
    if sizes == "spliced":
        all_frames = [spliced(RIDS[0], 40 + number, number, 30) for number in range(71)]
        before, frame, after = all_frames[:30], all_frames[30], all_frames[31:]
    for place in range(len(frame)):
        for value in {frame[place] ^ 1, chance.randrange(256), 0x17, 0x18, 0xFF}:
            changed = frame[:place] + bytes((value,)) + frame[place + 1 :]
            data = b"".join((*before, changed, *after))
            assert facts(data, runs=True) == facts(data, runs=False), (place, value)


@given(st.integers(0, 6000), st.integers(1, 6000))
@settings(max_examples=40, deadline=None)
def test_a_stream_that_breaks_off_is_told_in_the_same_words(length: int, step: int) -> None:
    data = b"".join(uniform(80))[:length]
    assert facts(data, runs=True, step=step) == facts(data, runs=False, step=step)


def test_a_large_frame_is_read_in_parts() -> None:
    large, small = chunk(RIDS[0], 0, 0, 250_000), chunk(RIDS[0], 1, 1, 5)
    reader, parcels = BlockReader(), list[Parcel]()
    reader.feed(large[:1000], parcels)
    assert reader.missing == 65_536
    reader.feed(large[1000:200_000], parcels)
    assert parcels == []
    reader.feed(large[200_000:] + small, parcels)
    assert reader.missing == 0
    reader.feed(small[:9], parcels)
    assert reader.missing == 0
    assert [view.body for view in single_frames(parcels)] == [large[4:], small[4:]]


def test_parcels_are_written_as_they_came() -> None:
    frames = [
        *uniform(50),
        chunk(RIDS[1], 51, 50, 100_000),
        packed(Frame(FrameType.HEARTBEAT, 5)),
        *uniform(9, first=60),
    ]
    parcels, pieces = read(b"".join(frames), runs=True)[0], list[bytes]()
    write_parcels(parcels, MAX_FRAME, pieces)
    assert b"".join(pieces) == b"".join(frames)
    assert len(pieces) == 3


def test_what_comes_before_a_frame_that_is_too_long_is_written() -> None:
    frames = [*uniform(9), chunk(RIDS[0], 10, 9, 200), *uniform(9, first=60)]
    pieces: list[bytes] = []
    with pytest.raises(LocalProtocolError, match="is over the link's max_frame of 200"):
        write_parcels(read(b"".join(frames), runs=True)[0], 200, pieces)
    assert b"".join(pieces) == b"".join(frames[:9])


@pytest.mark.parametrize("make", [chunk, spliced])
@pytest.mark.parametrize("sizes", [(250_000, 100_000), (70_000, 70_000)])
@pytest.mark.parametrize("at", [100, 66_000])
def test_large_frames_of_a_known_stream_are_passed_on_in_their_parts(
    make: Callable[..., bytes], sizes: tuple[int, int], at: int
) -> None:
    frames = [make(RIDS[0], number, number, size) for number, size in enumerate((9, *sizes))]
    reader, parcels = BlockReader(runs=True), list[Parcel]()
    reader.feed(frames[0], parcels)
    for frame in frames[1:]:
        reader.feed(frame[:at], parcels)
        reader.feed(frame[at:], parcels)
    runs = [parcel for parcel in parcels if isinstance(parcel, ChunkRun)]
    assert [len(run.pieces) for run in runs] == [3, 3]
    assert b"".join(piece for run in runs for piece in run.pieces) == b"".join(frames[1:])
    single, _ = facts(b"".join(frames), runs=False)
    assert [(view.body, view.fields) for view in single_frames(parcels)] == single
    assert [run.largest_payload for run in runs] == [len(encode_value(bytes(size))) for size in sizes]


@pytest.mark.parametrize("make", [chunk, spliced])
def test_a_changed_byte_of_a_frame_in_parts_is_judged_as_in_a_whole_one(make: Callable[..., bytes]) -> None:
    first, frame = make(RIDS[0], 299, 299, 9), make(RIDS[0], 300, 300, 70_000)
    for place in (*range(4, 40), *range(len(frame) - 40, len(frame))):
        for value in {frame[place] ^ 1, 0x17, 0x18, 0xFF}:
            changed = frame[:place] + bytes((value,)) + frame[place + 1 :]
            for cut in (33, 35, 36, 38, 66_000, len(frame) - 20, len(frame) - 5):
                reader, parcels, end = BlockReader(runs=True), list[Parcel](), ""
                try:
                    for piece in (first, changed[:cut], changed[cut:]):
                        reader.feed(piece, parcels)
                    reader.eof()
                except RemoteProtocolError as error:
                    end = str(error)
                got = [(view.body, view.fields) for view in single_frames(parcels)]
                assert (got, end) == facts(first + changed, runs=False), (place, value, cut)
