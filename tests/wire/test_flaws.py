"""What is wrong with an item is found where the decoder only knows that something is."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import ItemReader, decode_value, encode_value, inspect
from capdag.wire.flaws import find_flaw

HEAD = bytes.fromhex("a5000601070205030005")
"""A HEARTBEAT that goes on with its meta."""
DEEP = b"\x81" * 20 + b"\x00"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (HEAD + b"\xa1\x61a\xc1\x00", "key 5 (meta) of frame type 7, at ['a'], has a tag (byte 0xc1), at offset 13"),
        (HEAD + b"\xa1\x61a\x9f\xff", "key 5 (meta) of frame type 7, at ['a'], has an indefinite length (byte 0x9f)"),
        (HEAD + b"\xbf\xff", "key 5 (meta) of frame type 7 has an indefinite length (byte 0xbf), at offset 10"),
        (
            HEAD + b"\xa1\x61a\x62\xc3(",
            "key 5 (meta) of frame type 7, at ['a'], has text that is not UTF-8 (b'\\xc3(')",
        ),
        (HEAD + b"\xa1\x61a" + DEEP, "has nesting deeper than 16, at offset 27"),
        (HEAD + b"\xa2\x61a\x00\x61a\x00", "key 5 (meta) of frame type 7 has the key 'a' twice, at offset 14"),
        (HEAD + b"\xa1\x61a\x58\x05\x00", "key 5 (meta) of frame type 7, at ['a'], has 4 bytes too few, at offset 13"),
        (HEAD + b"\xa0\x00", "frame type 7 has 1 bytes more than one item, at offset 11"),
        (HEAD + b"\xa1\xc1\x00\x00", "key 5 (meta) of frame type 7 has a tag (byte 0xc1), at offset 11"),
        (bytes.fromhex("a4000601070205020a"), "frame type 7 has the key 2 twice, at offset 7"),
        (bytes.fromhex("a40006010702051863c100"), "key 99 (unknown) of frame type 7 has a tag (byte 0xc1)"),
        (bytes.fromhex("a2000605c100"), "key 5 (meta) of a frame has a tag (byte 0xc1), at offset 4"),
        (b"\x82\x00\xc1\x00", "not one strict CBOR item: at [1], a tag (byte 0xc1), at offset 2"),
        (b"", "not one strict CBOR item: 1 bytes too few, at offset 0"),
    ],
)
def test_a_body_that_cannot_be_decoded_is_told_by_its_key(body: bytes, said: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        inspect(body)
    assert said in str(caught.value)


ODD = [cbor2.undefined, cbor2.CBORSimpleValue(99), cbor2.CBORSimpleValue(0)]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_simple_values_are_no_values(odd: Any) -> None:
    for value, where in ((odd, ""), ([1, odd], r"at \[1\], "), ({"a": [odd]}, r"at \['a'\]\[0\], "), ({odd: 1}, "")):
        data = cbor2.dumps(value)
        for read in (decode_value, ItemReader().feed):
            with pytest.raises(RemoteProtocolError, match=f"not one strict CBOR item: {where}(undefined|simple value)"):
                read(data)
        with pytest.raises(LocalProtocolError):
            encode_value(value)


_keys = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary()
_values = st.recursive(
    _keys | st.floats() | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=3),
)


def check(data: bytes) -> None:
    """A flaw is found exactly in what is refused."""
    try:
        decode_value(data)
    except RemoteProtocolError:
        assert find_flaw(data) is not None
    else:
        assert find_flaw(data) is None


@given(_values, st.integers(0, 300), st.binary(max_size=2))
def test_a_flaw_is_found_in_damaged_items_that_are_refused(value: Any, at: int, changed: bytes) -> None:
    whole = cbor2.dumps(value)
    at %= len(whole)
    check(whole[:at] + changed + whole[at + len(changed) :])


@given(st.binary(max_size=24))
def test_a_flaw_is_found_in_any_bytes_that_are_refused(data: bytes) -> None:
    check(data)


def test_not_all_of_a_large_item_is_looked_at() -> None:
    data = b"\x9a\x00\x01\x00\x00" + bytes(65_535) + b"\xc1\x00"
    assert find_flaw(data) is None
    with pytest.raises(RemoteProtocolError, match="not one strict CBOR item: a tag"):
        decode_value(data)
