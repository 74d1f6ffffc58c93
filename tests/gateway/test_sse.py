"""JSON as the gateway sends it: whatever text it is given, a line of JSON comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.gateway.sse import dump, event

_TEXT = st.text(st.characters(), max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(_JSON)
def test_any_text_gives_one_line_of_utf_8(value: Any) -> None:
    data = event(value)
    assert data.startswith(b"data: ")
    assert len(data.decode().splitlines()) == 2
    whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "\ufffd" not in whole:
        assert json.loads(dump(value)) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("bad\udcff.gguf", "bad\ufffd.gguf"),
        ({"\udcff": [("a", "\ud800")], "n": 1}, {"\ufffd": [["a", "\ufffd"]], "n": 1}),
        ("\u2028\x85", "\u2028\x85"),
    ],
)
def test_half_a_surrogate_pair_is_replaced(value: Any, shown: Any) -> None:
    assert json.loads(dump(value).decode()) == shown
