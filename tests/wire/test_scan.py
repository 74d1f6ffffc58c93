"""Looking through an item without decoding it agrees with decoding; and no item takes more than linear time."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import Frame, FrameType, ItemReader, decode_value, encode_frame, encode_value, inspect
from capdag.wire.scan import ItemScan

_keys = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary()
_values = st.recursive(_keys | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(_keys, inner))


@given(_values, st.binary(max_size=3))
def test_an_item_ends_where_the_decoder_says(value: Any, behind: bytes) -> None:
    data = cbor2.dumps(value)
    assert ItemScan().advance(data + behind) == len(data)
    assert repr(decode_value(data)) == repr(value)


@given(st.binary(max_size=40))
def test_what_is_refused_without_decoding_is_never_decoded(data: bytes) -> None:
    try:
        refused = ItemScan().advance(data) != len(data)
    except RemoteProtocolError:
        refused = True
    if refused:
        with pytest.raises(RemoteProtocolError):
            decode_value(data)


def _body(meta: bytes) -> bytes:
    return cbor2.dumps({0: 6, 1: int(FrameType.LOG), 2: 0, 5: {}})[:-1] + b"\xa1\x61a" + meta


@pytest.mark.parametrize("key", [b"\x80", b"\xa0", b"\x82\x01\x02", b"\x81\xa0", b"\xa1\x01\x02"], ids=bytes.hex)
@pytest.mark.parametrize("behind", [b"\x00", b"\x59\x20\x00" + bytes(8192)], ids=["small", "large"])
@pytest.mark.parametrize("before", [b"\xa1", b"\xa2\x00\x01", b"\xa1\x01\xa1", b"\x81\xa2\x61a\x80"], ids=bytes.hex)
def test_keys_that_are_lists_or_maps_are_refused(before: bytes, key: bytes, behind: bytes) -> None:
    item = before + key + behind
    with pytest.raises(RemoteProtocolError, match="a key that is an array or a map, at offset"):
        decode_value(item)
    with pytest.raises(RemoteProtocolError, match="a key that is an array or a map, at offset"):
        ItemReader().feed(item)
    with pytest.raises(RemoteProtocolError, match=r"is an array or a map|key 5 .meta. of frame type 5 must be"):
        inspect(_body(item))


def _same_hash(count: int) -> list[tuple[int, int]]:
    """Return lists of two numbers which Python hashes alike: what tuples do with the hashes of numbers, undone."""
    first, second, start, ring = 11400714785074694791, 14029467366897019727, 2870177450012600261, 2**64
    found: list[tuple[int, int]] = []
    number = 0
    while len(found) < count:
        number += 1
        mixed = (start + number * second) % ring
        mixed = (mixed << 31 | mixed >> 33) % ring * first % ring
        other = (12345678901234567 - mixed) * pow(second, -1, ring) % ring
        if other < 2**61 - 1:
            found.append((number, other))
    return found


def test_keys_of_one_hash_are_refused_before_they_are_hashed() -> None:
    keys = _same_hash(20_000)
    assert len(set(map(hash, keys))) == 1
    item = b"\xb9" + len(keys).to_bytes(2, "big") + b"".join(cbor2.dumps(list(key)) + b"\x00" for key in keys)
    for read in (decode_value, lambda data: inspect(_body(data)), ItemReader().feed):
        with pytest.raises(RemoteProtocolError, match="a key that is an array or a map"):
            read(item)


@pytest.mark.parametrize("key", [(1, 2), cbor2.frozendict({1: 2})])
def test_who_sends_such_a_key_hears_what_to_send_instead(key: Any) -> None:
    said = r"a key of value\['a'\] is a (tuple|frozendict): send text instead, or a list of pairs for the map"
    with pytest.raises(LocalProtocolError, match=said):
        encode_value({"a": {key: 1}})
    with pytest.raises(LocalProtocolError, match=said):
        encode_frame(Frame(FrameType.LOG, 0, meta={"a": {key: 1}}))
