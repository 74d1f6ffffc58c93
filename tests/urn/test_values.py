from __future__ import annotations

import subprocess
import sys

import pytest

from capdag.urn import MAX_TAGS, MAX_TEXT, CapKind, CapUrn, Effect, MediaUrn, TaggedUrn

TEXT = 'cap:chat;in="media:enc=utf-8;fmt=json;record";model=m1;out="media:list;record"'


def test_a_cap_has_four_coordinates() -> None:
    cap = CapUrn.parse(TEXT)
    assert cap.in_media == MediaUrn.parse("media:record;fmt=json;enc=utf-8")
    assert cap.out_media == MediaUrn.parse("media:list;record")
    assert cap.effect is Effect.DECLARED
    assert dict(cap.tags) == {"chat": "*", "model": "m1"}


def test_a_built_cap_equals_the_one_read() -> None:
    built = CapUrn(
        MediaUrn({"record": "*", "fmt": "json", "enc": "utf-8"}),
        MediaUrn({"list": "*", "record": "*"}),
        tags={"model": "m1", "Chat": "*"},
    )
    assert built == CapUrn.parse(TEXT)
    assert str(built) == TEXT
    assert hash(built) == hash(CapUrn.parse(TEXT))
    assert built != str(built)


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        ("?", "?x"),
        ("?=v", "x?=v"),
        ("*", "x"),
        ("!=v", "x!=v"),
        ("v", "x=v"),
        ("!", "!x"),
        ("A b", 'x="A b"'),
        ("𝐀", 'x="𝐀"'),
    ],
)
def test_stored_texts_carry_the_form(stored: str, written: str) -> None:
    assert str(MediaUrn({"x": stored})) == f"media:{written}"
    assert MediaUrn.parse(f"media:{written}").tags["x"] == stored


@pytest.mark.parametrize("urn", [TaggedUrn.parse("t:x"), MediaUrn.parse("media:x"), CapUrn.parse("cap:x")])
def test_values_do_not_change(urn: TaggedUrn | CapUrn) -> None:
    for name in ("tags", "anything"):
        with pytest.raises(AttributeError):
            setattr(urn, name, {})
    with pytest.raises(TypeError):
        urn.tags["x"] = "v"  # type: ignore[index]
    assert eval(repr(urn)) == urn


def test_building_leaves_the_callers_mapping_out() -> None:
    tags = {"x": "*"}
    media = MediaUrn(tags)
    tags["y"] = "*"
    assert str(media) == "media:x"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("cap:effect=none", CapKind.IDENTITY),
        ("cap:in=media:void;out=media:void", CapKind.EFFECT),
        ("cap:in=media:void", CapKind.SOURCE),
        ("cap:out=media:void", CapKind.SINK),
        ("cap:chat", CapKind.TRANSFORM),
        ("cap:a;effect=none", CapKind.TRANSFORM),
    ],
)
def test_kinds(text: str, kind: CapKind) -> None:
    assert CapUrn.parse(text).kind is kind


def test_inputs_at_the_limits_are_read() -> None:
    longest = "t:" + "x" * (MAX_TEXT - 2)
    assert str(TaggedUrn.parse(longest)) == longest
    many = ";".join(f"k{number}" for number in range(MAX_TAGS))
    cap = CapUrn.parse(f'cap:in="media:{many}";out="media:{many}"')
    assert len(cap.in_media.tags) == len(cap.out_media.tags) == MAX_TAGS
    assert len(CapUrn.parse(f"cap:{many}").tags) == MAX_TAGS


def test_the_room_loads_without_event_loop_or_serialiser() -> None:
    code = "import sys, capdag.urn; print(*sorted({'trio', 'asyncio', 'msgspec', 'socket'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
