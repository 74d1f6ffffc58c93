"""What a user reads when a URN is wrong: the place, the text, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from capdag.errors import AttributionClass, CapdagError
from capdag.urn import MAX_TAGS, MAX_TEXT, CapUrn, Effect, MediaUrn, TaggedUrn, UrnError, response_media

ROOT = Path(__file__).parents[2]

TEXTS: list[tuple[Callable[[str], object], str, str, int | None, str]] = [
    (TaggedUrn.parse, "", "empty", None, "write a URN"),
    (TaggedUrn.parse, " t:x", "outer_whitespace", 0, "remove the white space"),
    (TaggedUrn.parse, "t:x\n", "outer_whitespace", 3, "remove the white space"),
    (TaggedUrn.parse, "chat", "missing_prefix", 4, "start with a prefix and a colon"),
    (TaggedUrn.parse, ":x", "empty_prefix", 0, "put a prefix before the colon"),
    (TaggedUrn.parse, "t:x=a,b", "invalid_character", 5, 'write anything else as key="value"'),
    (TaggedUrn.parse, "t:a b", "invalid_character", 3, "'=' or ';' must follow it"),
    (TaggedUrn.parse, "t:x;=v", "invalid_character", 4, "a key holds letters"),
    (TaggedUrn.parse, 't:x="a"b', "invalid_character", 7, "only ';' or the end may follow"),
    (TaggedUrn.parse, "t:?x?", "invalid_character", 4, "on one side of the key only"),
    (TaggedUrn.parse, '"t:?x?="', "invalid_character", 5, "on one side of the key only"),
    (TaggedUrn.parse, "t:x!=*", "invalid_character", 5, "'!' needs a plain value, as in x!=value"),
    (TaggedUrn.parse, "t:a;İ", "invalid_character", 4, "its lower case is no key"),
    (TaggedUrn.parse, "t:x=;y", "empty_component", 4, "give 'x' a value, or drop the '='"),
    (TaggedUrn.parse, 't:x=""', "empty_component", 5, "give 'x' a value, or drop the '='"),
    (TaggedUrn.parse, "t:x;?", "empty_component", 5, "put a key after '?'"),
    (TaggedUrn.parse, 't:x="abc', "unterminated_quote", 4, "close the quote that opens here"),
    (TaggedUrn.parse, 't:x="abc\\', "unterminated_quote", 4, "close the quote that opens here"),
    (TaggedUrn.parse, 't:x="a\\n"', "invalid_escape", 6, r"write \\ for a backslash"),
    (TaggedUrn.parse, "t:a;b;A=1", "duplicate_key", 6, "give the key 'a' once"),
    (TaggedUrn.parse, "t:x;42", "numeric_key", 4, "needs a letter, as in n42"),
    (TaggedUrn.parse, 't:x="\ud800"', "lone_surrogate", 5, "remove the lone surrogate"),
    (TaggedUrn.parse, "t:" + "x" * MAX_TEXT, "too_long", MAX_TEXT, "at most 65,536 characters (here 65,538)"),
    (TaggedUrn.parse, "t:" + "".join(f"k{n};" for n in range(1_025)), "too_many_tags", 5036, "at most 1,024 tags"),
    (TaggedUrn.parse, "t:" + "x;" * 40_000, "too_long", MAX_TEXT, "at most 65,536 characters"),
    (MediaUrn.parse, "cap:x", "wrong_prefix", 0, "a media URN starts with media:"),
    (MediaUrn.parse, "media:a;void", "void_not_atomic", 8, "drop void or the other tags"),
    (CapUrn.parse, "media:x", "wrong_prefix", 0, "a cap URN starts with cap:"),
    (CapUrn.parse, "cap:in=*;out=*", "bare_top", None, "add a tag, in, out, or effect=none"),
    (CapUrn.parse, "cap:chat;effect=wild", "bad_effect", 9, "declared, none or patch in lower case, or ?effect"),
    (CapUrn.parse, "cap:in=media:x;out=media:y;effect=none", "none_incoherent", None, "media:x must conform to"),
    (CapUrn.parse, 'cap:x;in="media:a b"', "bad_in", 6, "character 7 (' ') of 'media:a b': a key holds"),
    (CapUrn.parse, "cap:x;out=text", "bad_out", 6, 'as in out="media:…"'),
    (CapUrn.parse, 'cap:a;x="a,b"', "tags_not_serialisable", 6, "give 'x' a value of letters"),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "text", "kind", "position", "remedy"), TEXTS)
def test_a_wrong_text(parse: Callable[[str], object], text: str, kind: str, position: int | None, remedy: str) -> None:
    with pytest.raises(UrnError) as caught:
        parse(text)
    error = caught.value
    assert (error.kind, error.position, error.text) == (kind, position, text)
    assert remedy in str(error)
    assert len(str(error)) < 400
    if position is not None and position < len(text):
        assert str(error).startswith(f"character {position} ({text[position]!r}) of ")


ANY = MediaUrn.parse("media:")
CALLS: list[tuple[Callable[[], object], str, str]] = [
    (lambda: TaggedUrn("", {}), "empty_prefix", "give a prefix"),
    (lambda: TaggedUrn("a:b", {}), "invalid_character", "no colon"),
    (lambda: TaggedUrn("\ud800", {}), "lone_surrogate", "remove"),
    (lambda: MediaUrn({"a b": "*"}), "invalid_character", "a key holds"),
    (lambda: MediaUrn({"a=b": "*"}), "invalid_character", "a key holds"),
    (lambda: MediaUrn({"7": "*"}), "numeric_key", "as in n7"),
    (lambda: MediaUrn({"a": "*", "A": "*"}), "duplicate_key", "give the key 'a' once"),
    (lambda: MediaUrn({"a": ""}), "empty_component", "or '*' for any"),
    (lambda: MediaUrn({"a": "\udfff"}), "lone_surrogate", "remove"),
    (lambda: MediaUrn({f"k{n}": "*" for n in range(MAX_TAGS + 1)}), "too_many_tags", "at most 1,024 tags (here 1,025)"),
    (lambda: CapUrn(MediaUrn({"a": "*"}), ANY, tags={f"k{n}": "*" for n in range(MAX_TAGS)}), "too_many_tags", "1,025"),
    (lambda: MediaUrn({"a": '"' * MAX_TEXT}), "too_long", "65,536 characters"),
    (lambda: MediaUrn({"void": "*", "a": "*"}), "void_not_atomic", "drop void"),
    (lambda: CapUrn(ANY, ANY), "bare_top", "say what the cap does"),
    (lambda: CapUrn(ANY, ANY, tags={"in": "media:x"}), "reserved_key", "as its own argument"),
    (lambda: CapUrn(ANY, ANY, tags={"x": "a,b"}), "tags_not_serialisable", "give 'x' a value of letters"),
    (lambda: CapUrn(ANY, ANY, tags={"x": "?=*"}), "tags_not_serialisable", "give 'x' a value of letters"),
    (lambda: CapUrn(MediaUrn({"x": "a,b"}), ANY), "bad_in", "in must be a media URN"),
    (lambda: CapUrn(ANY, MediaUrn({"x": "a,b"})), "bad_out", "out must be a media URN"),
    (lambda: CapUrn(ANY, MediaUrn({"x": "*"}), effect=Effect.NONE), "none_incoherent", "must conform to"),
    (lambda: ANY.conforms_to(TaggedUrn.parse("t:x")), "prefix_mismatch", "only a media: URN"),
    (lambda: ANY.meets(TaggedUrn.parse("t:x")), "prefix_mismatch", "only a media: URN"),
    (lambda: ANY.satisfies(TaggedUrn.parse("t:x")), "prefix_mismatch", "only a media: URN"),
    (lambda: response_media(CapUrn.parse("cap:x;?effect")), "effect_open", "known only for a given effect"),
    (lambda: response_media(CapUrn.parse("cap:in=media:x"), ANY), "input_not_satisfied", "the cap takes media:x"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "remedy"), CALLS)
def test_a_wrong_call(call: Callable[[], object], kind: str, remedy: str) -> None:
    with pytest.raises(UrnError, match=re.escape(remedy)) as caught:
        call()
    assert caught.value.kind == kind


def test_the_error_is_the_senders_to_mend() -> None:
    with pytest.raises(CapdagError) as caught:
        CapUrn.parse("chat")
    assert caught.value.code == "INVALID_REQUEST"
    assert caught.value.attribution is AttributionClass.INPUT


def test_an_error_inside_a_medium_is_the_cause() -> None:
    with pytest.raises(UrnError) as caught:
        CapUrn.parse('cap:x;in="media:a;a"')
    cause = caught.value.__cause__
    assert isinstance(cause, UrnError)
    assert (cause.kind, cause.position, cause.text) == ("duplicate_key", 8, "media:a;a")


def test_a_long_text_is_shown_around_the_fault_only() -> None:
    with pytest.raises(UrnError) as caught:
        TaggedUrn.parse("t:" + "a" * 5_000 + "," + "b" * 5_000)
    assert f"'…{'a' * 40},{'b' * 39}…'" in str(caught.value)


def test_every_kind_is_documented_and_tested() -> None:
    page = (ROOT / "protocol-spec" / "urn.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", page.partition("## Errors")[2].partition("\n## ")[0], re.MULTILINE)
    tested = {kind for _, _, kind, _, _ in TEXTS} | {kind for _, kind, _ in CALLS}
    source = "".join(path.read_text() for path in (ROOT / "capdag" / "urn").glob("*.py"))
    raised = set(re.findall(r'UrnError\(\s*"(\w+)"', source)) | {"bad_in", "bad_out"}
    assert sorted(documented) == sorted(raised) == sorted(tested)
