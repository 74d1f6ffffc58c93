"""What a request needs and its model does not claim is told before anybody is asked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.gateway.harness import CHAT, MODEL, TEXT, ask, served
from tests.gateway.scripted import model_caps
from tests.gateway.test_answers import MESSAGES

PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
CALLED = {"role": "tool", "content": "4", "tool_call_id": "1"}


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (PATH, {"tools": [TOOL]}, "tools", "Test-Model does not claim tools, which the request asks for by tools"),
        (
            PATH,
            {"tools": [TOOL], "messages": [*MESSAGES, CALLED]},
            "tools",
            "tools, which the request asks for by tools",
        ),
        (PATH, {"messages": [*MESSAGES, CALLED]}, "messages", "tools, which the request asks for by messages"),
        (PATH, {"messages": [IMAGE]}, "messages", "does not claim vision,"),
        (PATH, {"response_format": {"type": "json_object"}}, "response_format", "does not claim json-schema,"),
        (PATH, {"logprobs": True, "tools": [TOOL]}, "logprobs", "claim tools and logprobs, .* by logprobs and tools"),
        ("/v1/completions", {"prompt": "x", "logprobs": 0}, "logprobs", "does not claim logprobs,"),
    ],
)
async def test_an_ability_that_the_model_does_not_claim_is_a_fault_of_the_request(
    path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    body = {**CHAT, **fields} if path == PATH else {"model": MODEL, **fields}
    async with served(TEXT) as server:
        reply = await ask(server, "POST", path, body)
        unknown = await ask(server, "POST", path, {**body, "model": "gpt-4"})
        assert not server.host.requests
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unsupported_ability", param)
    assert reply.error["type"] == "invalid_request_error"
    assert re.search(words, reply.error["message"])
    assert reply.headers["x-should-retry"] == "false"
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


async def test_a_request_goes_to_who_claims_what_it_asks_for() -> None:
    caps = [*model_caps(MODEL, abilities=["vision"]), *model_caps(MODEL, "chat", abilities=["tools", "json-schema"])]
    async with served(TEXT, caps=caps) as server:
        for fields in (
            {},
            {"tools": []},
            {"tools": [TOOL]},
            {"messages": [IMAGE]},
            {"tools": [TOOL], "tool_choice": "none"},
        ):
            assert (await ask(server, "POST", PATH, {**CHAT, **fields})).status == 200
        assert "tools" in server.host.requests[2].cap
        reply = await ask(server, "POST", PATH, {**CHAT, "tools": [TOOL], "messages": [IMAGE]})
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "unsupported_ability", "messages")
        assert "vision and tools" in reply.error["message"]
