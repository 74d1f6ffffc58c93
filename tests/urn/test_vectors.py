"""The golden vectors, one test a row. Departures: protocol-spec/urn-departures.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capdag.urn import (
    MAX_TAGS,
    CapUrn,
    MediaUrn,
    TaggedUrn,
    UrnError,
    admits_response,
    best_match,
    response_media,
)
from tests.vectors import load

Row = dict[str, Any]
PARSERS: dict[str, Callable[[str], TaggedUrn | CapUrn]] = {
    "tagged": TaggedUrn.parse,
    "media": MediaUrn.parse,
    "cap": CapUrn.parse,
}


def rows(name: str, wanted: Callable[[Row], bool] = lambda row: True) -> list[Any]:
    """Return the wanted rows of a file, each with its place in it as id."""
    return [pytest.param(row, id=f"{name}-{index}") for index, row in enumerate(load(f"urn/{name}")) if wanted(row)]


def is_departure(row: Row) -> bool:
    """Tell whether the public package itself reads its canonical text as something else, or not at all."""
    return "rt" in row or "rt_e" in row


def exceeds_limit(row: Row) -> bool:
    return bool(row["s"].count(";") >= MAX_TAGS)


@pytest.mark.parametrize("row", rows("canonical", lambda row: "c" in row and not is_departure(row)))
def test_canonical_text_is_the_public_packages(row: Row) -> None:
    urn = PARSERS[row["k"]](row["s"])
    assert str(urn) == row["c"]
    assert PARSERS[row["k"]](str(urn)) == urn
    if isinstance(urn, CapUrn):
        assert urn.kind == row["kind"]


@pytest.mark.parametrize("row", rows("canonical", is_departure))
def test_canonical_text_that_the_public_package_cannot_read_back_departs(row: Row) -> None:
    parse = PARSERS[row["k"]]
    if "i\u0307" in row["c"].partition("=")[0]:
        with pytest.raises(UrnError) as caught:
            parse(row["s"])
        assert caught.value.kind == "invalid_character"
        return
    urn = parse(row["s"])
    key, mark, value = row["c"].partition("=")
    assert str(urn) == f'{key}{mark}"{value}"'
    assert parse(str(urn)) == urn


@pytest.mark.parametrize("row", rows("canonical", lambda row: "e" in row))
def test_faulty_text_is_refused_for_the_same_reason(row: Row) -> None:
    with pytest.raises(UrnError) as caught:
        PARSERS[row["k"]](row["s"])
    assert caught.value.kind == row["e"]
    cause = caught.value.__cause__
    assert (cause.kind if isinstance(cause, UrnError) else None) == row.get("cause")


@pytest.mark.parametrize("row", rows("predicates"))
def test_predicates_of_tagged_urns(row: Row) -> None:
    a, b = TaggedUrn.parse(row["a"]), TaggedUrn.parse(row["b"])
    assert a.accepts(b) == row["accepts"]
    assert a.conforms_to(b) == row["conforms"]
    assert a.is_equivalent(b) == row["equiv"]
    assert a.is_comparable(b) == row["comp"]
    assert a.satisfies(b) == row["satisfies"]
    assert a.meets(b) == row["meets"]


@pytest.mark.parametrize("row", rows("dispatch"))
def test_dispatch(row: Row) -> None:
    assert CapUrn.parse(row["c"]).is_dispatchable(CapUrn.parse(row["r"])) == row["d"]


@pytest.mark.parametrize("row", rows("cap_predicates"))
def test_predicates_of_caps(row: Row) -> None:
    a, b = CapUrn.parse(row["a"]), CapUrn.parse(row["b"])
    assert a.accepts(b) == row["accepts"]
    assert a.conforms_to(b) == row["conforms"]
    assert a.is_equivalent(b) == row["equiv"]
    assert a.is_comparable(b) == row["comp"]
    assert a.may_dispatch(b) == row["may_dispatch"]
    assert a.grade(b) == row["grade"]
    assert a.flows_into(b) == row["flows"]


@pytest.mark.parametrize("row", rows("specificity", lambda row: not exceeds_limit(row)))
def test_specificity(row: Row) -> None:
    urn = PARSERS[row["k"]](row["s"])
    assert urn.specificity() == row["spec"]
    if isinstance(urn, TaggedUrn):
        assert list(urn.form_counts()) == row["tuple"]
    else:
        out, taken, own = row["axes"]
        assert [urn.out_media.specificity(), urn.in_media.specificity()] == [out, taken]
        assert own == row["spec"] - 10_000 * out - 100 * taken


@pytest.mark.parametrize("row", rows("specificity", exceeds_limit))
def test_more_tags_than_the_limit_are_refused(row: Row) -> None:
    with pytest.raises(UrnError) as caught:
        PARSERS[row["k"]](row["s"])
    assert caught.value.kind == "too_many_tags"


@pytest.mark.parametrize("row", rows("ranking"))
def test_ranking(row: Row) -> None:
    assert best_match(row["registry"], row["request"], row.get("preferred")) == row["index"]


def answer_of(row: Row) -> str | bool:
    cap = CapUrn.parse(row["cap"])
    if row["op"] == "derive":
        return str(response_media(cap))
    received = MediaUrn.parse(row["in"])
    if row["op"] == "infer":
        return str(response_media(cap, received))
    return admits_response(cap, received, MediaUrn.parse(row["emitted"]))


@pytest.mark.parametrize("row", rows("response_media", lambda row: "e" not in row))
def test_response_media(row: Row) -> None:
    assert answer_of(row) == (row["ok"] if row["op"] == "audit" else row["out"])


@pytest.mark.parametrize("row", rows("response_media", lambda row: "e" in row))
def test_response_media_that_cannot_be_said(row: Row) -> None:
    with pytest.raises(UrnError) as caught:
        answer_of(row)
    assert caught.value.kind == row["e"]
