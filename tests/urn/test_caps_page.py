"""protocol-spec/caps.md is true: its URNs are canonical, and its examples are decided as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capdag.urn import CapTable, CapUrn, MediaUrn, TaggedUrn, explain_dispatch

PAGE = (Path(__file__).parents[2] / "protocol-spec" / "caps.md").read_text()
PLACEHOLDERS = re.compile(r"\b(SLUG|LANG|NAME)\b")

URNS = sorted(set(re.findall(r"`((?:cap|media):[^`]*)`", PAGE)))


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table under the line that holds `heading`."""
    lines = PAGE.partition(heading)[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


CAPS = {name: CapUrn.parse(cap.strip("`")) for name, cap in table("## Examples")}
EXAMPLES = table("Of these, best first")


@pytest.mark.parametrize("text", URNS)
def test_a_urn_is_written_as_canonical_text_writes_it(text: str) -> None:
    text = PLACEHOLDERS.sub("x", text)
    assert str((CapUrn if text.startswith("cap:") else MediaUrn).parse(text)) == text


def test_every_kind_of_work_has_a_cap_of_its_own() -> None:
    caps = [CapUrn.parse(PLACEHOLDERS.sub("x", re.findall("`([^`]+)`", row[1])[0])) for row in table("# Capabilities")]
    assert len(caps) == 13
    for cap in caps:
        assert [other for other in caps if other.is_dispatchable(cap)] == [cap]


@pytest.mark.parametrize("row", table("## Ability tags"), ids=lambda row: row[0])
def test_a_tag_is_a_tag(row: list[str]) -> None:
    for text in re.findall("`([^`]+)`", row[0]):
        tag = PLACEHOLDERS.sub("x", text)
        assert str(TaggedUrn.parse(f"t:{tag}")) == f"t:{tag}"


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row[0].strip("`"))
def test_an_example_is_decided_as_the_page_says(row: list[str]) -> None:
    request = CapUrn.parse(row[0].strip("`"))
    caps: CapTable[str] = CapTable()
    for name, cap in CAPS.items():
        caps.register(cap, name)
    serving = list(caps.ranking(request))
    assert serving == [name for name in row[1].split(", ") if name]
    refused = dict(part.split(" by ") for part in row[2].split("; ") if part)
    for name, reasons in refused.items():
        assert faults(CAPS[name], request) == re.findall("`([^`]+)`", reasons)
    for name in CAPS.keys() - serving - refused.keys():
        assert set(faults(CAPS[name], request)) & {
            f"tag {tag}" for tag, stored in request.tags.items() if stored == "*"
        }


def faults(cap: CapUrn, request: CapUrn) -> list[str]:
    return [f"{verdict.axis} {verdict.asked}" for verdict in explain_dispatch(cap, request) if not verdict.fits]
