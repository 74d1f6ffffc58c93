"""The quick ways of reading and writing CHUNKs give what the slow ones give."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import Frame, FrameType, encode_frame, inspect, with_routing_id
from capdag.wire.chunks import forget_streams, read_known, write_plain

RID = bytes(range(16))
_uints = st.integers(0, 2**64 - 1) | st.integers(0, 300)


def plain(**changes: Any) -> Frame:
    fields: dict[str, Any] = {
        "stream_id": "resp-1-0", "payload": b"\x42hi", "routing_id": 3, "chunk_index": 0, "checksum": 2**63,
    }  # fmt: skip
    return Frame(FrameType.CHUNK, RID, changes.pop("seq", 1), **{**fields, **changes})


def read(body: bytes) -> str:
    try:
        view = inspect(body)
    except RemoteProtocolError as error:
        return str(error)
    return repr((view.seq, view.xid, view.stream_id, view.payload_size, view.frame()))


@given(_uints, _uints, _uints, st.binary(max_size=300), st.text(max_size=300), st.none() | _uints)
def test_what_is_written_quickly_is_what_the_encoder_writes(
    seq: int, index: int, checksum: int, payload: bytes, stream_id: str, xid: int | None
) -> None:
    frame = plain(seq=seq, chunk_index=index, checksum=checksum, payload=payload, stream_id=stream_id, routing_id=xid)
    body = cbor2.dumps(frame.fields())
    assert write_plain(frame.shared_fields()) in (body, None)
    assert encode_frame(frame) == body


def test_another_type_with_the_keys_of_a_chunk_stays_what_it_is() -> None:
    log = Frame.of({**plain().fields(), 1: int(FrameType.LOG)})
    assert write_plain(log.shared_fields()) is None
    assert inspect(encode_frame(log)).type is FrameType.LOG


@given(_uints, _uints, st.integers(2**32, 2**64 - 1), st.binary(max_size=70_000), st.none() | _uints)
def test_a_known_stream_is_read_without_decoding(
    seq: int, index: int, checksum: int, payload: bytes, xid: int | None
) -> None:
    forget_streams()
    first = encode_frame(plain(routing_id=xid))
    assert read_known(first) is None
    inspect(first)
    frame = plain(seq=seq, chunk_index=index, checksum=checksum, payload=payload, routing_id=xid)
    body = encode_frame(frame)
    view = read_known(body)
    assert view is not None
    assert view.frame() == frame
    assert (view.payload_size, view.seq, view.xid, view.stream_id) == (len(payload), seq, xid, "resp-1-0")


@given(st.integers(0, 60), st.integers(0, 255), st.sampled_from([None, 3, 70_000]))
def test_one_changed_byte_reads_the_same_whether_the_stream_is_known_or_not(
    at: int, byte: int, xid: int | None
) -> None:
    body = bytearray(encode_frame(plain(routing_id=xid)))
    forget_streams()
    inspect(bytes(body))
    body[at % len(body)] = byte
    known = read(bytes(body))
    forget_streams()
    assert read(bytes(body)) == known


@pytest.mark.parametrize("key", [b"\x06", b"\x0b", b"\x0d", b"\x0e", b"\x10", b"\x03"])
def test_a_key_in_a_longer_form_is_read_slowly(key: bytes) -> None:
    pieces = [
        b"\xa9\x00\x06\x01\x03\x02\x50" + RID, b"\x03", b"\x07", b"\x06", b"\x42\x5f\xff", b"\x0b", b"\x61s",
        b"\x0d", b"\x09", b"\x0e", b"\x00", b"\x10", b"\x1b" + bytes(8),
    ]  # fmt: skip
    body = b"".join(b"\x18" + piece if piece == key else piece for piece in pieces)
    forget_streams()
    view = inspect(body)
    assert (view.seq, view.xid, view.stream_id, view.fields[14]) == (7, 9, "s", 0)
    assert read_known(body) is None


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_body_that_is_cut_or_followed_is_refused(cut: int) -> None:
    body = encode_frame(plain())
    inspect(body)
    for wrong in (body[:-cut], body + bytes(cut)):
        with pytest.raises(RemoteProtocolError):
            inspect(wrong)


def test_streams_that_are_read_in_turn_are_all_known() -> None:
    forget_streams()
    bodies = [encode_frame(plain(stream_id=f"s{number}")) for number in range(4)]
    for body in bodies:
        inspect(body)
    assert all(read_known(body) is not None for body in bodies)


def test_a_stream_with_a_long_name_is_not_kept() -> None:
    forget_streams()
    body = encode_frame(plain(stream_id="s" * 300))
    inspect(body)
    assert read_known(body) is None


def test_fixed_widths_are_known_too() -> None:
    wide = (
        b"\xa9\x00\x06\x01\x03\x02\x50" + RID + b"\x03\x1a\0\0\0\x07\x06\x5a\0\0\0\x02\x41a\x0b\x78\x01s"
        b"\x0d\x1b\0\0\0\0\0\0\0\x09\x0e\x1a\0\0\0\x05\x10\x1b\0\0\0\0\0\0\0\x01"
    )
    forget_streams()
    slow = read(wide)
    view = read_known(wide)
    assert view is not None
    assert repr((view.seq, view.xid, view.stream_id, view.payload_size, view.frame())) == slow
    assert (view.fields[14], view.fields[16], view.xid) == (5, 1, 9)


@pytest.mark.parametrize("xid", [0, 9, 2**40])
def test_a_routing_id_is_spliced_into_a_known_chunk(xid: int) -> None:
    body = encode_frame(plain(routing_id=None))
    inspect(body)
    routed = with_routing_id(inspect(body), xid)
    assert routed.xid == xid
    assert routed.fields == inspect(routed.body).fields
    assert routed.payload_size == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"checksum": 2**64}, {"checksum": -1}, {"checksum": True}, {"seq": 2**64}, {"chunk_index": -1}, {"seq": 1.0},
        {"payload": "text"}, {"stream_id": b"bytes"}, {"stream_id": "\ud800"}, {"routing_id": b"short"},
        {"routing_id": True}, {"routing_id": 2**64}, {"version": 7},
    ],
)  # fmt: skip
def test_a_bad_chunk_of_ours_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(plain(**wrong))
