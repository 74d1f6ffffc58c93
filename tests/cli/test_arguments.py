"""What the words of `capdag call` mean."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from capdag.cli._arguments import NotServedError, find_capability, read_arguments
from capdag.client import Argument
from capdag.errors import ConfigError
from capdag.relay import Capability
from capdag.urn import CapUrn


def _capability(text: str, **facts: Any) -> Capability:
    urn = CapUrn.parse(text)
    return Capability(urn, str(urn), facts, "install", "host")


ECHO = _capability("cap:echo;in=media:octets;out=media:octets", aliases=["parrot"])
SMALL = _capability('cap:chat;in="media:chat-request;fmt=json;record";model=small;out="media:chat-event;list;record"')
LARGE = _capability('cap:chat;in="media:chat-request;fmt=json;record";model=large;out="media:chat-event;list;record"')
SERVED = (ECHO, SMALL, LARGE)


@pytest.mark.parametrize(
    ("text", "found"),
    [("echo", ECHO), ("parrot", ECHO), ("cap:echo", ECHO), ("cap:chat;model=large", LARGE), ("cap:chat", SMALL)],
)
def test_a_capability_is_named_by_urn_alias_or_tag(text: str, found: Capability) -> None:
    assert find_capability(text, SERVED) == found


def test_of_several_the_one_that_will_be_called_is_described() -> None:
    near = _capability("cap:echo;in=media:octets;mode=fast;out=media:octets", args=[])
    far = _capability("cap:echo;in=media:octets;mode=fast;out=media:octets;own=yes;tuned=yes", args=[])
    for served in ((near, far), (far, near)):
        assert find_capability("cap:echo;in=media:octets;mode=fast;out=media:octets", served) == near


def test_what_nobody_serves_is_answered_with_what_is_served() -> None:
    for text in ("ekko", "cap:ekko", "small"):
        with pytest.raises(NotServedError, match=r"no cartridge serves .*; served: parrot, chat$"):
            find_capability(text, SERVED)
    with pytest.raises(NotServedError, match="served: nothing"):
        find_capability("echo", ())


def test_a_name_that_several_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'chat' may mean cap:chat;.*model=small.*model=large.*give the cap URN"):
        find_capability("chat", SERVED)


ODD = [5, True, "x", [5], [None], [[]], {"a": 1}, [{"media_urn": 5}], [{"media_urn": "nonsense"}], [{"sources": 5}]]


@pytest.mark.parametrize("odd", ODD)
def test_facts_that_cannot_be_read_are_passed_over(odd: object) -> None:
    capability = _capability(ECHO.text, aliases=odd, args=odd)
    assert find_capability("echo", (capability,)) == capability
    with pytest.raises(NotServedError, match="served: echo"):
        find_capability("ekko", (capability,))
    assert read_arguments(["media:octets=a"], capability)[0].data == b"a"


def test_names_of_caps_are_one_bounded_line() -> None:
    capability = _capability(ECHO.text, aliases=["a\x1b[2J\nError: forged" + "x" * 1000])
    with pytest.raises(NotServedError) as caught:
        find_capability("ekko", (capability,))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_cap_that_is_offered_twice_is_one() -> None:
    assert find_capability("parrot", (*SERVED, ECHO._replace(install_id="other"))) == ECHO


def test_a_text_that_is_no_urn_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cap:in=' is no cap URN"):
        find_capability("cap:in=", SERVED)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("media:octets=hello", b"hello"),
        ("media:octets=a=b", b"a=b"),
        ("media:octets=", b""),
        ("hello", b"hello"),
        ("a=b", b"a=b"),
    ],
)
def test_text_is_the_value_itself(word: str, value: bytes) -> None:
    (argument,) = read_arguments([word], ECHO)
    assert (argument.media_urn, argument.data) == ("media:octets", value)


def test_an_argument_beside_the_main_input_goes_by_its_media() -> None:
    capability = _capability(
        "cap:in=media:octets;out=media:octets;resize",
        args=[{"media_urn": "media:octets"}, {"media_urn": "media:width;enc=utf-8"}],
    )
    width, image = read_arguments(["media:width;enc=utf-8=40", "pixels"], capability)
    assert (width.media_urn, width.data) == ("media:width;enc=utf-8", b"40")
    assert (image.media_urn, image.data) == ("media:octets", b"pixels")


async def test_stdin_is_the_main_input_when_nothing_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "input").write_bytes(b"from stdin")
    for words in ([], ["-"], ["media:octets=-"]):
        with (tmp_path / "input").open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            (argument,) = read_arguments(words, ECHO)
            assert not isinstance(argument.data, bytes)
            assert b"".join([piece async for piece in argument.data]) == b"from stdin"


JOIN = _capability(
    "cap:in=media:glue;join;out=media:joined",
    args=[
        {"media_urn": "media:glue", "name": "glue", "sources": [{"stdin": "media:glue"}]},
        {"media_urn": "media:words", "sources": [{"stdin": "media:list;word"}], "is_sequence": True},
    ],
)


async def _items(argument: Argument) -> list[Any]:
    assert argument.is_sequence
    assert not isinstance(argument.data, bytes)
    return [item async for item in argument.data]


async def test_a_sequence_has_a_line_of_json_or_a_text_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "words"
    file.write_text('"a"\n\n{"b": 1}\n' + json.dumps("c" * 70_000))
    words = [f"media:list;word=@{file}", "glue", "media:words=@@d", "media:word;list=-"]
    with file.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        listed, glue = read_arguments(words, JOIN)
        assert glue == Argument("media:glue", b"glue")
        assert listed.media_urn == "media:list;word"
        held = ["a", {"b": 1}, "c" * 70_000]
        assert await _items(listed) == [*held, "@d", *held]


async def test_a_line_that_is_no_item_is_named(tmp_path: Path) -> None:
    (tmp_path / "words").write_text('"a"\nb\n')
    (listed,) = read_arguments([f"media:words=@{tmp_path / 'words'}"], JOIN)
    with pytest.raises(ConfigError, match=r"line 2 of media:list;word is not JSON: .* not 'b'"):
        await _items(listed)


def test_what_the_manifest_does_not_describe_goes_as_it_is_given() -> None:
    given = read_arguments(["media:octets=a", "b"], _capability(ECHO.text, args=[{"name": "x"}]))
    assert given == [Argument("media:octets", b"a"), Argument("media:octets", b"b")]


def test_a_scalar_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        read_arguments(["a", "media:words=x", "media:words=y", "media:glue=b"], JOIN)
    assert str(caught.value) == "--arg media:glue is given 2 times; it is no sequence and has one value"


def test_a_capability_without_input_takes_nothing() -> None:
    assert read_arguments([], _capability("cap:in=media:void;now;out=media:octets")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["media:text=x"], "--arg 'media:text=x': write MEDIA=VALUE with one of media:octets"),
        (["media:octets"], "--arg 'media:octets': write MEDIA=VALUE with one of media:octets"),
        (["-", "media:octets=-"], "stdin can be the value of one argument only"),
        (["@no/such/file"], "cannot read no/such/file: No such file or directory"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_arguments(words, ECHO)
    assert str(caught.value) == message
