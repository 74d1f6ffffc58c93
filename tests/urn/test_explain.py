"""Explanations: each verdict is right by itself, and together they are the dispatch rule."""

from __future__ import annotations

import pytest
from hypothesis import given

from capdag.urn import Axis, CapUrn, explain_dispatch
from tests.urn.strategies import CAPS, WIDE_CAPS, may_serve

CANDIDATE = CapUrn.parse('cap:chat;in="media:fmt=json;record";model=m1;out="media:list;record";tools')


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("cap:chat;effect=none", ["effect none (it has effect declared)"]),
        ("cap:chat;vision", ["tag vision (not there)"]),
        ("cap:chat;model=m2", ["tag model=m2 (it has model=m1)"]),
        ("cap:!tools;chat", ["tag !tools (it has tools)"]),
        ("cap:chat;tools!=v", ["tag tools!=v (it has tools)"]),
        ("cap:chat;out=media:text", ["out text (not there)"]),
        ('cap:chat;out="media:!list"', ["out !list (it has list)"]),
        (
            'cap:chat;in="media:fmt=xml;text"',
            ["in fmt=json (the request has fmt=xml)", "in record (the request does not say)"],
        ),
        ("cap:?effect;chat;model;?vision", []),
        ('cap:chat;in="media:fmt=json;record;text";out=media:list', []),
    ],
)
def test_what_keeps_a_candidate_out(request_text: str, expected: list[str]) -> None:
    request = CapUrn.parse(request_text)
    assert [str(verdict) for verdict in explain_dispatch(CANDIDATE, request) if not verdict.fits] == expected
    assert CANDIDATE.is_dispatchable(request) == (not expected)


def test_what_lets_a_candidate_in() -> None:
    request = CapUrn.parse("cap:!vision;?speech;chat;in=media:;model;out=media:list")
    assert [tuple(verdict) for verdict in explain_dispatch(CANDIDATE, request)] == [
        (Axis.EFFECT, "declared", "declared", True),
        (Axis.TAG, "chat", "chat", True),
        (Axis.TAG, "model", "model=m1", True),
        (Axis.TAG, "!vision", "", True),
        (Axis.OUT, "list", "list", True),
    ]
    assert ", ".join(map(str, explain_dispatch(CANDIDATE, request))) == (
        "effect declared, tag chat, tag model (it has model=m1), tag !vision (not there), out list"
    )


def test_a_request_that_asks_nothing_needs_no_reason() -> None:
    assert explain_dispatch(CANDIDATE, CapUrn.parse("cap:?effect")) == ()


@given(CAPS, CAPS)
def test_verdicts_agree_with_dispatch(candidate: CapUrn, request: CapUrn) -> None:
    agree(candidate, request)


@given(WIDE_CAPS, WIDE_CAPS)
def test_verdicts_on_many_tags_agree_with_dispatch(candidate: CapUrn, request: CapUrn) -> None:
    agree(candidate, request)


def agree(candidate: CapUrn, request: CapUrn) -> None:
    verdicts = explain_dispatch(candidate, request)
    assert all(verdict.fits for verdict in verdicts) == candidate.is_dispatchable(request)
    assert all(verdict.fits for verdict in verdicts) == may_serve(candidate, request)
    assert len({(verdict.axis, verdict.asked) for verdict in verdicts}) == len(verdicts)
