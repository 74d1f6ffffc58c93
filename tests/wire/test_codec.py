from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import Frame, FrameType, decode_frame, encode_frame, fnv1a_64, inspect, view_of, with_routing_id
from tests.vectors import load, named

RID = bytes(range(16))


@pytest.mark.parametrize("row", load("wire/valid"), ids=named)
def test_valid_bodies_decode_and_encode_to_the_same_bytes(row: dict[str, Any]) -> None:
    body = bytes.fromhex(row["hex"])
    frame = decode_frame(body)
    assert frame.frame_type.name == row["fields"]["type"]
    assert encode_frame(frame) == body
    assert frame.raw == body


@pytest.mark.parametrize("row", load("wire/valid"), ids=named)
def test_every_decoded_field_is_the_vectors(row: dict[str, Any]) -> None:
    frame = decode_frame(bytes.fromhex(row["hex"]))
    for name, wanted in row["fields"].items():
        if name == "type":
            continue
        value = getattr(frame, name)
        if isinstance(value, bytes):
            value = value.hex()
        if name != "meta":
            assert value == wanted, name


@pytest.mark.parametrize("row", load("wire/invalid"), ids=named)
def test_invalid_bodies_are_refused_as_recommended(row: dict[str, Any]) -> None:
    body = bytes.fromhex(row["hex"])
    if row["recommend"].startswith(("accept", "ignore")):
        inspect(body)
    else:
        with pytest.raises(RemoteProtocolError):
            inspect(body)


@pytest.mark.parametrize("row", load("wire/checksums"), ids=lambda row: str(row["len"]))
def test_checksums(row: dict[str, Any]) -> None:
    made = {
        "1024 zero bytes": bytes(1024),
        "bytes i mod 256 for i in 0..4095": bytes(i % 256 for i in range(4096)),
        "0xa5 repeated 10000 times": b"\xa5" * 10_000,
    }
    data = made[row["input_desc"]] if row["input_hex"] is None else bytes.fromhex(row["input_hex"])
    assert fnv1a_64(data) == row["fnv1a64"]


def test_errors_name_key_type_and_value() -> None:
    with pytest.raises(RemoteProtocolError, match=r"key 3 \(seq\) of frame type 7 .*, not str 'one'"):
        inspect(cbor2.dumps({0: 6, 1: 7, 2: 5, 3: "one"}))


def test_local_mistakes_are_local_errors() -> None:
    with pytest.raises(LocalProtocolError, match="CHUNK needs key 14"):
        encode_frame(Frame(FrameType.CHUNK, RID, payload=b""))
    with pytest.raises(LocalProtocolError, match=r"key 10 \(cap\) of frame type 1 must be text, not int 7"):
        encode_frame(Frame(FrameType.REQ, RID, cap=7))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
@pytest.mark.parametrize("read", [inspect, decode_frame])
def test_a_body_is_bytes(read: Callable[[Any], object], kind: type) -> None:
    body = encode_frame(Frame(FrameType.HEARTBEAT, RID))
    read(body)  # its form is known now
    with pytest.raises(LocalProtocolError, match=rf"a body is bytes, not {kind.__name__}: give bytes\(body\)"):
        read(kind(body))


def test_unknown_keys_survive_a_round_trip() -> None:
    body = cbor2.dumps({0: 6, 1: 7, 2: 5, 3: 0, 22: "later", 1000: [1]})
    frame = decode_frame(body)
    assert frame.extra == {22: "later", 1000: [1]}
    assert encode_frame(frame) == body


@pytest.mark.parametrize("key", [14, 16])
def test_null_where_a_chunk_needs_a_value_is_missing(key: int) -> None:
    fields: dict[int, Any] = {0: 6, 1: 3, 2: 5, 3: 0, 6: b"", 14: 0, 16: 0}
    fields[key] = None
    with pytest.raises(RemoteProtocolError, match="CHUNK needs key"):
        inspect(cbor2.dumps(fields))


@pytest.mark.parametrize("trailing", ["00", "f6", "50" + "00" * 16, "ff"])
def test_bytes_after_the_frame_are_refused(trailing: str) -> None:
    body = cbor2.dumps({0: 6, 1: 7, 2: 5, 3: 0})
    with pytest.raises(RemoteProtocolError):
        inspect(body + bytes.fromhex(trailing))


def test_a_tag_anywhere_is_refused() -> None:
    for tag in (0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 64, 77, 100, 256, 258, 43000, 55799, 70000):
        with pytest.raises(RemoteProtocolError):
            inspect(cbor2.dumps({0: 6, 1: 7, 2: 5, 3: 0, 5: {"x": cbor2.CBORTag(tag, b"\x01")}}))


@pytest.mark.parametrize("xid", [0, 1, 23, 24, 255, 256, 70_000, 2**32, 2**64 - 1])
def test_the_routing_id_splice_reads_back(xid: int) -> None:
    frame = Frame(FrameType.CHUNK, RID, 3, stream_id="s", payload=b"\x41x", chunk_index=0, checksum=2**64 - 1)
    view = view_of(frame)
    spliced = with_routing_id(view, xid)
    assert spliced.body[1:].startswith(view.body[1:])
    assert spliced.body.endswith(b"\x0d" + cbor2.dumps(xid))
    again = inspect(spliced.body)
    assert again.xid == spliced.xid == xid
    assert {**again.fields} == {**view.fields, 13: xid}


def test_a_routing_id_is_replaced_and_non_canonical_heads_are_not_refused() -> None:
    fields = {0: 6, 1: 7, 2: 5, 3: 0}
    once = with_routing_id(inspect(cbor2.dumps(fields)), 9)
    assert inspect(with_routing_id(once, 70_000).body).xid == 70_000
    wide = b"\xb8\x04" + cbor2.dumps(fields)[1:]  # a fixed-width map head, as some languages write
    assert inspect(with_routing_id(inspect(wide), 5).body).xid == 5


_scalars = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | st.text() | st.binary()
_meta = st.dictionaries(
    st.text(max_size=9),
    st.recursive(_scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner), max_leaves=9),
    max_size=4,
)


@given(
    st.sampled_from([FrameType.LOG, FrameType.ERR, FrameType.HEARTBEAT, FrameType.RELAY_STATE]),
    st.binary(min_size=16, max_size=16) | st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    _meta,
    st.binary(),
)
def test_what_encodes_decodes_to_the_same(
    kind: FrameType, rid: bytes | int, seq: int, meta: Any, payload: bytes
) -> None:
    frame = Frame(kind, rid, seq, meta=meta, payload=payload)
    body = encode_frame(frame)
    assert encode_frame(decode_frame(body)) == body


@given(st.binary(max_size=200))
def test_any_bytes_give_a_frame_or_a_remote_error(data: bytes) -> None:
    try:
        view = inspect(data)
    except RemoteProtocolError:
        return
    encode_frame(view.frame())


def test_a_frame_of_a_view_can_be_changed_without_changing_the_view() -> None:
    view = inspect(encode_frame(Frame(FrameType.LOG, RID, 3, meta={"level": "info"})))
    frame = view.frame()
    frame.routing_id, frame.seq, frame.meta = 9, 4, None
    assert view.fields == {0: 6, 1: 5, 2: RID, 3: 3, 5: {"level": "info"}}
    assert frame.fields() == {0: 6, 1: 5, 2: RID, 3: 4, 13: 9}
    frame.stream_id = "s"
    assert list(frame.fields()) == [0, 1, 2, 3, 11, 13]
    assert inspect(encode_frame(frame)).frame() == frame


@pytest.mark.parametrize("key", [True, 3, "22", 2.0])
def test_extra_keys_are_integers_that_are_not_known(key: Any) -> None:
    with pytest.raises(LocalProtocolError, match="extra holds unknown integer keys"):
        Frame(FrameType.LOG, RID, extra={key: 1})


@pytest.mark.parametrize("body", [{0: 6, True: 7, 2: 5, 3: 0}, {0: 6, 1: 7, 2.0: 5, 3: 0}, {False: 6, 1: 7, 2: 5}])
def test_keys_that_equal_integers_are_none(body: dict[Any, Any]) -> None:
    inspect(cbor2.dumps({0: 6, 1: 7, 2: 5, 3: 0}))  # a shape that is known
    with pytest.raises(RemoteProtocolError, match="keys are integers"):
        inspect(cbor2.dumps(body))


def test_what_an_unknown_key_holds_is_plain_too() -> None:
    good = {0: 6, 1: 7, 2: 5, 3: 0, 22: [1]}
    inspect(cbor2.dumps(good))
    with pytest.raises(RemoteProtocolError, match="key 22 of frame type 7 holds list"):
        inspect(cbor2.dumps({**good, 22: [cbor2.CBORSimpleValue(99)]}))
    with pytest.raises(RemoteProtocolError):
        inspect(cbor2.dumps({**good, 5: {"a": cbor2.undefined}}))


def test_integers_past_64_bits_are_not_written() -> None:
    for wrong in ({"seq": 2**64}, {"credit": 2**64}, {"meta": {"n": 2**70}}):
        with pytest.raises(LocalProtocolError):
            encode_frame(Frame(FrameType.CREDIT, RID, **{"credit": 1, **wrong}))  # type: ignore[arg-type]
