"""protocol-spec/urn.md is true: its tables are those of the code, and its examples are read as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capdag.urn import CapUrn, TaggedUrn, UrnError
from capdag.urn._forms import form_of, tag_fits

PAGE = (Path(__file__).parents[2] / "protocol-spec" / "urn.md").read_text()


def table(first: str) -> list[list[str]]:
    """Return the rows of the table whose head begins with `first`."""
    lines = PAGE[PAGE.index(f"\n| {first}") :].strip().splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


FORMS = table("Form |")
FITS = table("fits ↓ in →")


def texts(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", FORMS, ids=lambda row: row[0])
def test_a_form_is_spelled_as_the_page_says(row: list[str]) -> None:
    _, canonical, stored, _, score, others = row
    for spelling in texts(canonical) + texts(others):
        urn = TaggedUrn.parse(f"t:{spelling}")
        assert urn.tags == {"x": texts(stored)[0]}
        assert str(urn) == f"t:{texts(canonical)[0]}"
        assert urn.specificity() == int(score)


def stored_of(form: str, value: str) -> str:
    (stored,) = TaggedUrn.parse("t:" + form.replace("=v", f"={value}").replace("=p", f"={value}")).tags.values()
    return stored


def test_what_fits_what() -> None:
    heads = ["`?x`", "`x?=p`", "`x`", "`x!=p`", "`x=p`", "`!x`"]
    assert f"| fits ↓ in → | {' | '.join(heads)} |" in PAGE
    assert len(FITS) == 6
    for row in FITS:
        for head, cell in zip(heads, row[1:], strict=True):
            assert cell in ("", "yes", "v = p", "v ≠ p")
            for other in ("a", "b"):
                found = tag_fits(stored_of(texts(row[0])[0], "a"), stored_of(texts(head)[0], other))
                assert found == (cell == "yes" or cell == ("v = p" if other == "a" else "v ≠ p")), (row[0], head, other)


def test_a_form_has_its_score() -> None:
    assert [form_of(stored_of(texts(row[0])[0], "a")) for row in FITS] == list(range(6))


@pytest.mark.parametrize(
    ("said", "tags", "kind"),
    [
        ("(`=v`, `!=v`, `!;`, `*`)", ["=v", "!=v", "!;", "*"], "invalid_character"),
        ("(`t:!`)", ["!"], "empty_component"),
        ("(`x=`, `x=;`)", ["x=", "x=;"], "empty_component"),
        ("`7`, `٤` and `²` are digits here", ["7", "٤", "²"], "numeric_key"),
        ("a mark and a value of `*`, `?` or `!` alone, quoted or not", ["x!=*", 'x?="!"'], "invalid_character"),
        ("no mark and an empty quoted value", ['x=""'], "empty_component"),
        ("a key\n   whose lower case is no key, as of `İ`", ["İ"], "invalid_character"),
    ],
)
def test_a_fault_is_told_as_the_page_says(said: str, tags: list[str], kind: str) -> None:
    assert said in PAGE
    for tag in tags:
        with pytest.raises(UrnError) as caught:
            TaggedUrn.parse(f"t:{tag}")
        assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("said", "text", "canonical"),
    [
        ("`½` and `Ⅻ` are none", "t:½", "t:½"),
        ("(`ΑΣ:`\nis `ας:`)", "ΑΣ:", "ας:"),
        ("(`Σ` is `σ` everywhere)", "t:aΣ=bΣ", "t:aσ=bσ"),
        ('(`x="?=*"`)', 't:x="?=*"', 't:x="?=*"'),
        ('`x?=""`, `x!=""`', 't:x?=""', 't:x?=""'),
        ('`cap:in=*;extract;out="media:"` is `cap:extract`', 'cap:in=*;extract;out="media:"', "cap:extract"),
        ('`in`, `in=*` or `in="*"`', 'cap:a;in;out="*"', "cap:a"),
        ("`?effect`, `effect=?`, `effect`, `effect=*`", "cap:effect=*", "cap:?effect"),
        (r'`cap:in="media:x=\"ǅ\""` is `cap:in="media:x=ǆ"`', r'cap:in="media:x=\"ǅ\""', 'cap:in="media:x=ǆ"'),
        ("`effect=NONE` is read in lower case", "cap:effect=NONE", "cap:effect=none"),
    ],
)
def test_a_text_is_written_as_the_page_says(said: str, text: str, canonical: str) -> None:
    assert said in PAGE
    assert str((CapUrn if text.startswith("cap:") else TaggedUrn).parse(text)) == canonical


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("identity", "cap:effect=none"),
        ("effect", "cap:in=media:void;out=media:void"),
        ("source", "cap:in=media:void"),
        ("sink", 'cap:out="media:!void"'),
        ("transform", "cap:effect=none;a"),
    ],
)
def test_a_cap_is_of_the_kind_that_the_page_says(kind: str, text: str) -> None:
    assert kind in " ".join(row[0] for row in table("Kind of a cap"))
    assert str(CapUrn.parse(text).kind) == kind
