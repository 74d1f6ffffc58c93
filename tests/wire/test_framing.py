from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import Frame, FrameSplitter, FrameType, inspect, pack, view_of
from tests.vectors import load, named


def read_all(splitter: FrameSplitter, pieces: list[bytes]) -> tuple[list[str], str]:
    names: list[str] = []
    try:
        for piece in pieces:
            names.extend(inspect(body).type.name for body in splitter.feed(piece))
        splitter.eof()
    except RemoteProtocolError as error:
        return names, str(error)
    return names, "clean_eof"


@pytest.mark.parametrize("row", load("wire/framing"), ids=named)
@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_streams_end_as_the_vectors_say(row: dict[str, Any], step: int) -> None:
    data = bytes.fromhex(row["stream_hex"])
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    names, end = read_all(FrameSplitter(row["max_frame"]), pieces)
    assert names == row["frames_read"]
    assert (end == "clean_eof") == (row["end"] == "clean_eof")


def test_good_frames_before_a_bad_length_are_delivered() -> None:
    good = pack(view_of(Frame(FrameType.HEARTBEAT, 5)), 100)
    names, end = read_all(FrameSplitter(), [good + b"Loading model...\n"])
    assert names == ["HEARTBEAT"]
    assert "stream offset 13" in end
    assert "b'Loading model...\\n'" in end


def test_the_writer_refuses_a_body_over_max_frame() -> None:
    view = view_of(Frame(FrameType.RELAY_STATE, 0, payload=bytes(100)))
    with pytest.raises(LocalProtocolError, match="max_frame of 50"):
        pack(view, 50)
    assert pack(view, len(view.body))[4:] == view.body


@pytest.mark.parametrize("row", load("wire/writer_limit"), ids=lambda row: str(row["max_frame"]))
def test_writing_matches_the_vectors(row: dict[str, Any]) -> None:
    view = view_of(Frame(FrameType.RELAY_STATE, 0, payload=bytes(row["encoded_len"] - 12)))
    assert len(view.body) == row["encoded_len"]
    if row["result"] == "written":
        assert len(pack(view, row["max_frame"])) == 4 + row["encoded_len"]
    else:
        with pytest.raises(LocalProtocolError):
            pack(view, row["max_frame"])


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.data())
def test_any_cut_of_a_stream_gives_the_same_bodies(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    splitter = FrameSplitter()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found.extend(splitter.feed(stream[start:end]))
    splitter.eof()
    assert found == bodies
    assert splitter.offset == len(stream)


@pytest.mark.parametrize("step", [2, 7, 1023, 1500])
def test_a_frame_that_comes_in_small_pieces_takes_no_more_memory_than_in_one(step: int) -> None:
    body = bytes(range(256)) * 512
    stream = len(body).to_bytes(4, "big") + body
    splitter, found = FrameSplitter(), list[bytes]()
    tracemalloc.start()
    try:
        for start in range(0, len(stream), step):
            found += splitter.feed(stream[start : start + step])
        assert found == [body]
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)  # its pieces, and these joined
    finally:
        tracemalloc.stop()
