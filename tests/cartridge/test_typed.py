"""Inputs as typed values: what comes out, and what is said of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Condition
from typing import Annotated, Any

import msgspec
import pytest

from capdag.cartridge import AsyncInput, Cartridge, CartridgeError, Input
from capdag.cartridge._arguments import Arguments
from capdag.cartridge._async_input import Bell
from capdag.cartridge._input import Input as ThreadInput
from capdag.cartridge._served import serve
from capdag.cartridge._typed import convert, decode_json, decode_text
from capdag.cartridge._writer import Flow
from capdag.errors import LocalProtocolError
from capdag.wire import body_end_frame, encode_value, view_of
from tests.cartridge.driver import chunk, end, start

CHAT, SAMPLES, NOTE = "media:chat;fmt=json", "media:list;sample", "media:note"


class Message(msgspec.Struct):
    """One message."""

    role: str
    content: str


class Chat(msgspec.Struct, forbid_unknown_fields=True):
    """A request for chat."""

    messages: list[Message]
    temperature: Annotated[float, msgspec.Meta(le=2)] = 1.0
    stop: dict[str, int] = {}


@dataclass
class Sample:
    """One item."""

    x: int


def bad(fault: str, detail: Mapping[str, object] | None) -> CartridgeError:
    """Make an error as an argument would."""
    return CartridgeError("INVALID_REQUEST", f"argument 'a' {fault}", "input", detail)


def test_json_becomes_a_struct() -> None:
    chat = decode_json(bad, b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 2}', Chat)
    assert chat == Chat([Message("user", "hi")], 2.0)
    assert decode_json(bad, b"[1, 2]", list[int]) == [1, 2]
    assert convert(bad, 3, {"x": 1}, Sample) == Sample(1)
    assert decode_text(bad, "ö".encode()) == "ö"


@pytest.mark.parametrize(
    ("data", "why", "detail"),
    [
        ('{"messages": [], "temperature": "hot"}', "temperature is 'hot': send float",
         {"field": "temperature", "seen": "hot"}),
        ('{"messages": [], "temperature": 3}', "temperature is 3: send float <= 2",
         {"field": "temperature", "seen": 3}),
        ('{"messages": [{"role": "user", "content": 7}]}', r"messages\[0\].content is 7: send str",
         {"field": "messages[0].content", "seen": 7}),
        ('{"messages": {}}', "messages is {}: send array", {"field": "messages"}),
        ('{"messages": [{"role": "user"}]}', r"object missing required field `content` in messages\[0\]: correct",
         {"field": "messages[0]"}),
        ('{"messages": [], "temprature": 1}', "object contains unknown field `temprature`: correct", {"field": ""}),
        ('{"messages": [], "stop": {"a": "b"}}', r"stop\[...\] is what was sent: send int", {"field": "stop[...]"}),
        ("[]", r"the value is \[\]: send object", {"field": ""}),
        ("{", "is not JSON: .* it begins '{': send one JSON value in UTF-8", {}),
        ("", "is not JSON", {}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(data: str, why: str, detail: Mapping[str, object]) -> None:
    with pytest.raises(CartridgeError, match=why) as refused:
        decode_json(bad, data.encode(), Chat)
    assert (refused.value.code, refused.value.attribution) == ("INVALID_REQUEST", "input")
    assert refused.value.detail == detail


def test_items_and_text_that_are_wrong() -> None:
    with pytest.raises(CartridgeError, match=r"\[3\].x is 'one': send int"):
        convert(bad, 3, {"x": "one"}, Sample)
    with pytest.raises(CartridgeError, match="byte 1 is 0xff: encode it as UTF-8"):
        decode_text(bad, b"a\xff")


class Body:
    """The arguments of one request, fed by hand."""

    def __init__(self, kind: type[ThreadInput] | type[AsyncInput] = ThreadInput) -> None:
        c = Cartridge("c", version="1")
        args: list[Mapping[str, Any]] = [
            {"media_urn": CHAT, "name": "chat", "required": True, "sources": [{"stdin": CHAT}]},
            {"media_urn": SAMPLES, "name": "samples", "required": True, "sources": [{"position": 0}]},
            {"media_urn": NOTE, "name": "note", "required": False, "sources": [{"cli_flag": "--note"}]},
        ]
        cap = f'cap:in="{CHAT}";out=media:void'
        c.add_cap(cap, lambda _: None, title="t", aliases=["t"], args=args)
        served = serve(c.manifest()["cap_groups"][0]["caps"][1], lambda _: None)

        def no_feed(*_: object) -> Any:
            raise AssertionError

        self.arguments = Arguments(
            served,
            lambda source, arg: kind(source, arg.media_urn, is_required=arg.is_required),
            no_feed,
            Condition() if kind is ThreadInput else Bell(),
            Flow(1, None),
            32,
            lambda _: None,
            lambda: None,
        )

    def send(self, media: str, *values: Any, unbounded: bool = False) -> None:
        """Send one stream."""
        head = start(1, media, stream=media, sequence=media == SAMPLES)
        head.unbounded = unbounded or None
        tail = end(1, len(values), stream=media)
        if unbounded:
            tail.chunk_count = None
        chunks = [chunk(1, number, encode_value(value), stream=media) for number, value in enumerate(values)]
        for frame in (head, *chunks, tail):
            self.arguments.take(view_of(frame))

    def end(self) -> None:
        """End the body."""
        assert view_of(body_end_frame(1))
        self.arguments.end()

    def input(self, media: str) -> Input:
        """Return an argument."""
        found = self.arguments.named(media)
        assert isinstance(found, Input)
        return found

    def async_input(self, media: str) -> AsyncInput:
        """Return an argument for a task."""
        found = self.arguments.named(media)
        assert isinstance(found, AsyncInput)
        return found


def test_several_arguments_each_in_its_type() -> None:
    body = Body()
    body.send(SAMPLES, {"x": 1}, {"x": 2})
    body.send(CHAT, '{"mess', b'ages": []}')
    body.end()
    assert body.input(CHAT).json(Chat) == Chat([])
    assert list(body.input(SAMPLES).each(Sample)) == [Sample(1), Sample(2)]
    assert not body.input(NOTE).given
    assert body.input(NOTE).text() == ""


def test_a_required_argument_that_is_missing() -> None:
    body = Body()
    body.send(CHAT, b"{}")
    body.end()
    with pytest.raises(CartridgeError, match=f"argument '{SAMPLES}' is required and was not sent: send") as refused:
        list(body.input(SAMPLES).each(Sample))
    assert (refused.value.code, refused.value.attribution) == ("INVALID_REQUEST", "input")
    assert refused.value.detail == {"param": SAMPLES}


def test_a_stream_without_end_is_not_collected() -> None:
    body = Body()
    body.send(CHAT, b"{}", unbounded=True)
    with pytest.raises(CartridgeError, match="has no end and cannot be read whole: take its values one by one"):
        body.input(CHAT).json(Chat)
    assert list(body.input(CHAT)) == [b"{}"]


def test_items_come_with_their_meta() -> None:
    body = Body()
    head, item = start(1, SAMPLES, sequence=True), chunk(1, 0, encode_value(5))
    item.meta = {"n": 1}
    for frame in (head, item, end(1, 1)):
        body.arguments.take(view_of(frame))
    assert list(body.input(SAMPLES).items()) == [(5, {"n": 1})]


AGAIN = f"input '{SAMPLES}' was read to its end already: keep what you took"
GONE = f"input '{CHAT}' was read to its end already: read\\(\\) gives all of it again"


def test_what_was_read_whole_can_be_read_again_and_what_was_taken_is_gone() -> None:
    body = Body()
    body.send(CHAT, '{"messages": []}')
    body.send(SAMPLES, 1, 2)
    body.end()
    chat, samples, note = body.input(CHAT), body.input(SAMPLES), body.input(NOTE)
    assert chat.text() == chat.read().decode() == chat.text() == '{"messages": []}'
    assert chat.json(Chat) == Chat([])
    for once_more in (lambda: list(chat), lambda: list(chat.items()), lambda: list(chat.each(int))):
        with pytest.raises(LocalProtocolError, match=GONE):
            once_more()
    assert next(iter(samples)) == 1
    assert list(samples) == [2], "what is left can be taken in another loop"
    for read in (samples.read, samples.text, lambda: samples.json(int), lambda: list(samples)):
        with pytest.raises(LocalProtocolError, match=AGAIN):
            read()
    assert (note.text(), note.read(), list(note)) == ("", b"", [])


async def test_the_same_for_tasks() -> None:
    body = Body(AsyncInput)
    body.send(CHAT, '{"messages": []}')
    body.send(SAMPLES, 1, 2)
    body.end()
    chat, samples, note = body.async_input(CHAT), body.async_input(SAMPLES), body.async_input(NOTE)
    assert await chat.text() == (await chat.read()).decode() == '{"messages": []}'
    assert await chat.json(Chat) == Chat([])
    for once_more in (lambda: aiter(chat), chat.items, lambda: chat.each(int)):
        with pytest.raises(LocalProtocolError, match=GONE):
            once_more()
    assert await anext(aiter(samples)) == 1
    assert [value async for value in samples] == [2]
    for read in (samples.read, samples.text, lambda: samples.json(int)):
        with pytest.raises(LocalProtocolError, match=AGAIN):
            await read()
    assert (await note.text(), await note.read()) == ("", b"")
