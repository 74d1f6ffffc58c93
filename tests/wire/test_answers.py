"""The streams of an answer are outputs of its cap."""

from __future__ import annotations

from typing import Any

import pytest

from capdag.errors import RemoteProtocolError
from capdag.urn import CapUrn
from capdag.wire import AnswerRules, StreamHead

CAP = CapUrn.parse("cap:in=media:octets;out=media:text;read")
OUTPUTS: list[dict[str, Any]] = [
    {"media_urn": "media:text"},
    {"media_urn": "media:list;words", "is_sequence": True},
    {"media_urn": "media:notes", "optional": True},
]
FACTS = {"outputs": OUTPUTS}


def head(media: str = "media:text", output: str | None = None, *, is_sequence: bool = False) -> StreamHead:
    return StreamHead("resp-0", media, is_sequence, False, output, {})


WORDS = head("media:words;list", "media:words;list", is_sequence=True)


def test_an_answer_with_all_that_must_come_is_right() -> None:
    rules = AnswerRules(CAP, FACTS)
    rules.start(WORDS)
    rules.start(head("media:narrower;text"))
    rules.end()


@pytest.mark.parametrize(
    ("heads", "why"),
    [
        ([head(), head()], "stream 'resp-0' is the second of the main output"),
        ([WORDS, WORDS], "stream 'resp-0' is the second of output 'media:list;words'"),
        ([head("nonsense \"")], "stream 'resp-0': media_urn is no media URN: "),
        ([head(output="x")], "stream 'resp-0': output is no media URN: "),
        ([head("media:image")], "stream 'resp-0' has media 'media:image' where media:text was due"),
        ([head("media:")], "stream 'resp-0' has media 'media:' where media:text was due"),
        ([head("media:z", "media:z")], "output 'media:z', which the manifest does not declare for cap:in=media:octets"),
        ([head(is_sequence=True)], "stream 'resp-0' has is_sequence True, which the manifest denies"),
        ([head("media:list;words", "media:list;words")], "has is_sequence False, which the manifest denies"),
    ],
)  # fmt: skip
def test_a_stream_that_is_no_output_is_refused(heads: list[StreamHead], why: str) -> None:
    rules = AnswerRules(CAP, FACTS)
    for one in heads[:-1]:
        rules.start(one)
    with pytest.raises(RemoteProtocolError) as caught:
        rules.start(heads[-1])
    assert why in str(caught.value)


def test_an_output_that_never_came_is_missed_at_the_end() -> None:
    rules = AnswerRules(CAP, FACTS)
    with pytest.raises(RemoteProtocolError, match="ended without the main output, which the manifest declares"):
        rules.end()
    rules.start(head())
    with pytest.raises(RemoteProtocolError, match="ended without output 'media:list;words'"):
        rules.end()


@pytest.mark.parametrize(
    "facts",
    [None, {}, {"outputs": 5}, {"outputs": []}, {"outputs": [5]}, {"outputs": [{}]}, {"outputs": [{"media_urn": "x"}]}],
)
def test_without_a_manifest_that_can_be_read_the_urn_alone_counts(facts: dict[str, Any] | None) -> None:
    rules = AnswerRules(CAP, facts)
    rules.end()
    rules.start(head(is_sequence=True))
    rules.start(head("media:z", "media:z"))
    with pytest.raises(RemoteProtocolError, match="second of the main output"):
        rules.start(head())


@pytest.mark.parametrize("facts", [None, {"outputs": []}])
def test_a_cap_that_gives_nothing_has_no_main_output(facts: dict[str, Any] | None) -> None:
    rules = AnswerRules(CapUrn.parse("cap:in=media:text;out=media:void;store"), facts)
    rules.end()
    with pytest.raises(RemoteProtocolError, match="has media 'media:' where media:void was due"):
        rules.start(head("media:"))


@pytest.mark.parametrize("cap", ["cap:effect=none", "cap:?effect;in=media:a;out=media:b", "cap:x"])
def test_where_the_media_follows_from_the_input_any_will_do(cap: str) -> None:
    AnswerRules(CapUrn.parse(cap)).start(head("media:c"))
