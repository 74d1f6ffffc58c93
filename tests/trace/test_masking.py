"""Masking: no contents stay, everything else does, and what comes out is still a good frame."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import AttributionClass
from capdag.trace import mask
from capdag.wire import (
    Failure,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    decode_value,
    encode_value,
    err_frame,
    fnv1a_64,
    inspect,
    item_payloads,
    log_frame,
    view_of,
)

VALUES = st.recursive(
    st.integers(-(2**40), 2**40) | st.booleans() | st.none() | st.text(max_size=30) | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["text", "usage", "n"]), inner),
    max_leaves=8,
)


def chunk(payload: bytes, meta: dict[str, Any] | None = None) -> FrameView:
    return view_of(
        Frame(
            FrameType.CHUNK,
            b"r" * 16,
            7,
            stream_id="s",
            payload=payload,
            chunk_index=3,
            checksum=fnv1a_64(payload),
            meta=meta,
            routing_id=9,
        )
    )


@given(VALUES)
def test_a_masked_chunk_is_a_good_frame_of_the_same_size_without_its_texts(value: Any) -> None:
    view = chunk(encode_value(value))
    masked = inspect(mask(view).body)
    assert masked.payload_size == view.payload_size
    assert masked.fields[16] == fnv1a_64(masked.fields[6])
    assert {key: masked.fields[key] for key in (1, 2, 3, 11, 13, 14)} == {
        key: view.fields[key] for key in (1, 2, 3, 11, 13, 14)
    }
    assert not [text for text in texts(decode_value(masked.fields[6])) if set(text) - set("x")]


def texts(value: Any) -> list[str]:
    if isinstance(value, (str, bytes)):
        return [value if isinstance(value, str) else value.decode()]
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


def test_keys_and_numbers_stay_for_they_are_the_protocols() -> None:
    masked = mask(chunk(encode_value({"text": "Grüße", "choice": 1, "usage": {"total": 12}})))
    assert decode_value(masked.fields[6]) == {"text": "xxxxxxx", "choice": 1, "usage": {"total": 12}}


def test_a_piece_of_an_item_becomes_zeros() -> None:
    pieces = item_payloads({"text": "secret " * 20}, 40)
    for piece in pieces:
        assert mask(chunk(piece)).fields[6] == bytes(len(piece))


def test_item_meta_is_contents() -> None:
    assert mask(chunk(encode_value(b"abc"), {"name": "Ada", "index": 4})).meta == {"name": "xxx", "index": 4}


@pytest.mark.parametrize("key", ["api_key", "apiKey", "Authorization", "token", "client-secret", "password", "cookie"])
def test_secrets_in_any_meta_go(key: str) -> None:
    meta = {"parent_rid": 3, "context": {key: "abc", "lang": "de"}}
    masked = mask(view_of(Frame(FrameType.REQ, 1, cap="cap:echo", meta=meta)))
    assert masked.meta == {"parent_rid": 3, "context": {key: "***", "lang": "de"}}


def test_what_log_and_err_say_stays() -> None:
    failure = Failure("HANDLER_ERROR", AttributionClass.INTERNAL, "no such token in the vocabulary", {"seen": 3})
    for frame in (err_frame(1, failure), log_frame(1, LogRecord("info", "loading", progress=0.5))):
        view = view_of(frame)
        assert mask(view) is view
