"""What must hold for every URN, on random ones."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from capdag.urn import CapUrn, Effect, MediaUrn, TaggedUrn, UrnError, response_media
from tests.urn.strategies import CAPS, MEDIA, TAGS, fits, may_serve, meets

Urn = TaggedUrn | CapUrn

LETTERS = 'aAbxéİΣςǅ𝐀1½²_-/:.*?!=;"\\ ,\t\n\x00\ud800😀'
TEXTS = st.text(st.sampled_from(LETTERS), max_size=30)
PIECES = st.lists(
    st.sampled_from(
        ["in", "out", "effect", "void", "x", "é", "?", "!", "=", ";", '"', "media:", "\\", "none", "*", "V"]
    ),
    max_size=12,
).map("".join)
VALUES = st.text(min_size=1, max_size=8)  # hypothesis makes no lone surrogates here


@given(st.sampled_from(["", "t:", "media:", "cap:", "cap:x;"]), st.one_of(TEXTS, PIECES, st.text(max_size=20)))
@example("t:", 'x="?=*"')
@example("cap:", 'in="media:x=\\"\u01c5\\""')
def test_a_text_is_read_or_refused_and_what_is_read_is_written_so_that_it_reads_the_same(start: str, rest: str) -> None:
    text = start + rest
    for parse in (TaggedUrn.parse, MediaUrn.parse, CapUrn.parse):
        urn = read_or_error(parse, text)
        if isinstance(urn, UrnError):
            assert urn.text == text
            assert urn.position is None or 0 <= urn.position <= len(text)
            continue
        again = parse(str(urn))
        assert (again, str(again), hash(again)) == (urn, str(urn), hash(urn))
        assert again.tags == urn.tags


def read_or_error(parse: Callable[[str], Urn], text: str) -> Urn | UrnError:
    try:
        return parse(text)
    except UrnError as error:
        return error


@given(st.dictionaries(st.sampled_from(["a", "b", "é-1", "x:/."]), VALUES))
def test_what_a_program_builds_reads_back_the_same(tags: dict[str, str]) -> None:
    urn = TaggedUrn("t", tags)
    assert TaggedUrn.parse(str(urn)) == urn
    assert TaggedUrn.parse(str(urn)).tags == tags


@given(MEDIA, MEDIA)
def test_media_predicates_agree_with_sets_of_states(a: MediaUrn, b: MediaUrn) -> None:
    assert a.conforms_to(b) == b.accepts(a) == fits(a.tags, b.tags)
    assert a.satisfies(b) == fits(a.tags, b.tags, missing="!")
    assert a.meets(b) == b.meets(a) == meets(a.tags, b.tags)
    assert a.is_comparable(b) == (a.conforms_to(b) or b.conforms_to(a))


@given(MEDIA, MEDIA, MEDIA)
def test_conformance_is_an_order(a: MediaUrn, b: MediaUrn, c: MediaUrn) -> None:
    assert a.conforms_to(a)
    if a.conforms_to(b) and b.conforms_to(c):
        assert a.conforms_to(c)
    if a.conforms_to(b) and b.conforms_to(a):
        # Antisymmetric but for tags that say nothing.
        assert a.is_equivalent(b)
        assert without_open(a) == without_open(b)


def without_open(media: MediaUrn) -> MediaUrn:
    return MediaUrn({key: stored for key, stored in media.tags.items() if stored != "?"})


@given(CAPS, CAPS)
def test_dispatch_agrees_with_the_rules_read_directly(candidate: CapUrn, request: CapUrn) -> None:
    assert candidate.is_dispatchable(request) == may_serve(candidate, request)
    if candidate.is_dispatchable(request):
        assert candidate.may_dispatch(request)
        assert candidate.grade(request) in ("exact", "guaranteed")


@given(CAPS)
def test_every_cap_serves_itself(cap: CapUrn) -> None:
    assert cap.is_dispatchable(cap)
    assert cap.grade(cap) == "exact"
    assert cap.is_equivalent(cap)
    assert cap.accepts(cap)


@given(CAPS, CAPS)
def test_equal_caps_have_equal_coordinates(a: CapUrn, b: CapUrn) -> None:
    same = (a.in_media, a.out_media, a.effect, a.tags) == (b.in_media, b.out_media, b.effect, b.tags)
    assert (a == b) == same
    assert (str(a) == str(b)) == same


@given(MEDIA, MEDIA, TAGS)
def test_a_patch_of_the_declared_input_gives_the_declared_output(
    a: MediaUrn, b: MediaUrn, tags: dict[str, str]
) -> None:
    cap = CapUrn(a, b, effect=Effect.PATCH, tags=tags)
    assert response_media(cap) == b
    assert response_media(cap, a) == b
