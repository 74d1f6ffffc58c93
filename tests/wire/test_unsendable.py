"""What the protocol has no bytes for is refused where it is given, in words that say what to send instead."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import uuid
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import LocalProtocolError
from capdag.wire import Frame, FrameType, decode_value, encode_frame, encode_value, item_payloads, scalar_payloads

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    A = "a"


class Later(datetime.datetime):
    """A class of somebody else, on top of one that is known."""


NEST: list[Any] = []
NEST.append(NEST)

UNSENDABLE: list[tuple[Any, str]] = [
    (NOW, r"datetime.*isoformat"),
    (Later(2026, 1, 2, tzinfo=datetime.UTC), r"Later.*isoformat"),
    (datetime.datetime(2026, 1, 2), r"datetime.*isoformat"),  # noqa: DTZ001 - cbor2 itself refuses one without a zone
    (NOW.date(), r"date.*isoformat"),
    (NOW.time(), r"time.*isoformat"),
    (datetime.timedelta(1), r"timedelta.*total_seconds"),
    (decimal.Decimal("1.5"), r"Decimal.*str\(value\)"),
    (fractions.Fraction(1, 3), r"Fraction.*str\(value\)"),
    (uuid.UUID(int=1), r"UUID.*value\.bytes"),
    *((ipaddress.ip_address(text), r"IPv\dAddress.*str\(value\)") for text in ("1.2.3.4", "::1")),
    *((ipaddress.ip_network(text), r"IPv\dNetwork.*str\(value\)") for text in ("1.2.3.0/24", "::/64")),
    *((ipaddress.ip_interface(text), r"IPv\dInterface.*str\(value\)") for text in ("1.2.3.4/24", "::1/64")),
    (pathlib.Path("a"), r"Path.*str\(value\)"),
    (re.compile("a"), r"Pattern.*value\.pattern"),
    ({1}, r"set.*a list"),
    (frozenset({1}), r"frozenset.*a list"),
    ({1: 2}.keys(), r"dict_keys.*a list"),
    (1j, r"complex.*two numbers"),
    (Colour.RED, r"Colour.*value\.value"),
    (2**64, r"integer of 65 bits.*str\(value\)"),
    (-(2**64) - 1, r"integer of 65 bits"),
    (cbor2.CBORTag(5, [1, 2]), r"CBORTag.*value\.value"),
    (object(), r"object.*null, a bool"),
    ("a\ud800", r"half a character at 1"),
    (NEST, r"nested deeper than 16"),
]
_ids = [type(value).__name__ for value, _ in UNSENDABLE]


@pytest.mark.parametrize(("value", "words"), UNSENDABLE, ids=_ids)
def test_a_value_without_bytes_is_refused_wherever_it_stands(value: Any, words: str) -> None:
    for whole in (value, [1, value], {"a": {"b": (value,)}}, deque([value]), UserDict(a=value)):
        with pytest.raises(LocalProtocolError, match=words):
            encode_value(whole)
        with pytest.raises(LocalProtocolError, match=words):
            item_payloads(whole, 100)
        with pytest.raises(LocalProtocolError, match=words):
            list(scalar_payloads(whole, 100)) if whole is not NEST else encode_value(whole)
        with pytest.raises(LocalProtocolError, match=words):
            encode_frame(Frame(FrameType.LOG, 5, meta={"when": whole}))


def test_the_words_say_where_it_stands() -> None:
    with pytest.raises(LocalProtocolError, match=r"value\['a'\]\[1\]\['b'\] is a set, which the protocol has not"):
        encode_value({"a": [0, {"b": {1}}]})
    with pytest.raises(LocalProtocolError, match="a key of value is a frozenset"):
        encode_value({frozenset({1}): 1})
    with pytest.raises(LocalProtocolError, match=r"key 5 \(meta\).*in meta, value\['when'\] is a datetime"):
        encode_frame(Frame(FrameType.LOG, 5, meta={"when": NOW}))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1.5, float("inf"), 2**64 - 1, -(2**64), "é", b"\xc2\x49", bytearray(b"a"), memoryview(b"a"), (1, 2),
        Point(1, 2), Level.HIGH, Word.A, OrderedDict(a=1), UserDict(a=1), UserList([1]), deque([1]), range(3), [],
        {}, {1: {b"": None}}, "\u00c2\u00c9",
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_python_has_of_its_own_for_plain_values_is_sent(value: Any) -> None:
    for whole in (value, [value], {"a": value}):
        assert encode_value(whole) == cbor2.dumps(whole)
        decode_value(encode_value(whole))


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=9,
)


@given(_plain)
def test_plain_values_read_back(value: Any) -> None:
    assert repr(decode_value(encode_value(value))) == repr(value)
