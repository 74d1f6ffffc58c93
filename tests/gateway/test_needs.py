"""What a chat needs is a URN, and who has it is a matter of dispatch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capdag.gateway.bodies import ChatBody
from capdag.gateway.catalogue import request_cap
from capdag.gateway.needs import chat_needs
from capdag.urn import CapUrn
from cartridges.llama_cpp.serving import cap_urn

PAGE = Path(__file__).parents[2] / "protocol-spec" / "caps.md"
PLAIN = 'cap:chat;in="media:chat-request;enc=utf-8;fmt=json;record";model=m;out="media:chat-event;list;record"'
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def body(**fields: Any) -> ChatBody:
    return msgspec.convert({"model": "m", "messages": [USER], **fields}, ChatBody)


def says(*parts: dict[str, Any], **fields: Any) -> ChatBody:
    return body(messages=[USER, {"role": "user", "content": list(parts)}], **fields)


IMAGE = says({"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}})


@pytest.mark.parametrize(
    ("asked", "abilities"),
    [
        (body(), set()),
        (body(tools=[], response_format={"type": "text"}, logprobs=False, temperature=0, n=2, stream=True), set()),
        (body(tools=[TOOL]), {"tools"}),
        (body(tools=[TOOL], tool_choice="required"), {"tools"}),
        (body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}), {"tools"}),
        (body(tools=[TOOL], tool_choice="none"), set()),
        (body(messages=[USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}]), {"tools"}),
        (body(messages=[USER, {"role": "tool", "content": "4", "tool_call_id": "1"}]), {"tools"}),
        (body(messages=[USER, {"role": "function", "content": "4"}]), {"tools"}),
        (body(response_format={"type": "json_object"}), {"json-schema"}),
        (body(response_format={"type": "json_schema", "json_schema": {"schema": {}}}), {"json-schema"}),
        (body(logprobs=True, top_logprobs=2), {"logprobs"}),
        (says({"type": "text", "text": "image_url"}), set()),
        (IMAGE, {"vision"}),
        (says({"type": "input_audio", "input_audio": {}}, {"type": "file", "file": {}}), {"audio", "files"}),
        (says({"type": "refusal", "refusal": "no"}, {"type": "hologram"}), set()),
        (
            says({"type": "image_url"}, {"type": "image_url"}, tools=[TOOL], logprobs=True),
            {"tools", "vision", "logprobs"},
        ),
    ],
)
def test_abilities_follow_from_the_body(asked: ChatBody, abilities: set[str]) -> None:
    needs = CapUrn.parse(chat_needs(asked))
    plain = CapUrn.parse(PLAIN)
    assert (needs.in_media, needs.out_media, needs.effect) == (plain.in_media, plain.out_media, plain.effect)
    assert dict(needs.tags) == {"chat": "*", "model": "m", **dict.fromkeys(abilities, "*")}
    assert str(needs) == chat_needs(asked)


@pytest.mark.parametrize(
    ("letters", "fields", "rung"),
    [
        (0, {}, None),
        (4_096, {}, None),
        (4_100, {}, "ctx-2k"),
        (8_192, {}, "ctx-2k"),
        (8_196, {}, "ctx-4k"),
        (0, {"max_tokens": 4_096}, "ctx-4k"),
        (4, {"max_completion_tokens": 4_096}, "ctx-8k"),
        (400_000, {}, "ctx-128k"),
    ],
)
def test_the_rung_of_the_context_ladder_is_asked_for_where_models_compete(
    letters: int, fields: dict[str, int], rung: str | None
) -> None:
    halves = [{"role": "user", "content": "é" * (letters // 4)}] * 2
    parts = [{"role": "user", "content": [{"type": "text", "text": "a" * letters}, {"type": "image_url"}]}]
    for messages, abilities in ((halves, set()), (parts, {"vision"})):
        asked = body(messages=messages, **fields)
        expected = {"chat", *abilities} | ({rung} if rung else set())
        assert set(CapUrn.parse(chat_needs(asked, any_model=True)).tags) == expected
        assert set(CapUrn.parse(chat_needs(asked)).tags) == {"chat", "model", *abilities}


def test_a_plain_request_is_the_documented_cap_and_the_gateways() -> None:
    row = re.search(r"\| chat \| `([^`]+)` \|", PAGE.read_text())
    assert row is not None
    assert chat_needs(body(model="SLUG")) == row[1].replace("SLUG", "slug") == request_cap("chat", "slug")
    assert chat_needs(body(model="Org/Model Q4")) == request_cap("chat", "org/model-q4")


def test_every_need_is_documented() -> None:
    page = PAGE.read_text().partition("## Ability tags")[2]
    for tag in ("tools", "vision", "audio", "files", "json-schema", "logprobs", "ctx-2k"):
        assert re.search(rf"^\| [^|]*`{tag}`", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("asked", "eligible"),
    [
        (body(), True),
        (body(logprobs=True), True),
        (body(response_format={"type": "json_object"}), True),
        (body(model="other"), False),
        (body(tools=[TOOL]), False),
        (IMAGE, False),
    ],
)
def test_eligibility_is_dispatch(asked: ChatBody, eligible: bool) -> None:
    """A real cartridge's cap: nothing but its tags decides."""
    assert CapUrn.parse(cap_urn("chat", "m", 2048)).is_dispatchable(CapUrn.parse(chat_needs(asked))) == eligible


def test_a_request_for_any_model_goes_where_it_has_room() -> None:
    small, large = (CapUrn.parse(cap_urn("chat", model, context)) for model, context in (("s", 2048), ("l", 8192)))
    asked = CapUrn.parse(chat_needs(body(max_tokens=3000), any_model=True))
    assert [cap.is_dispatchable(asked) for cap in (small, large)] == [False, True]
