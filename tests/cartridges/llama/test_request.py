"""Bodies: what is asked of the engine, and what is refused, by which field and with what remedy."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from capdag.cartridge import CartridgeError
from cartridges.llama_cpp.request import read_chat, read_completion
from cartridges.llama_cpp.room import Room

ROOM = Room(slots=4, context=100, longest_token=10)

HI = [{"role": "user", "content": "hi"}]


def asked(**fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(read_chat(json.dumps({"messages": HI, **fields}).encode(), ROOM).body)
    return body


def refused(body: object, *, completion: bool = False) -> CartridgeError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(CartridgeError) as caught:
        (read_completion if completion else read_chat)(data, ROOM)
    assert (caught.value.code, caught.value.attribution) == ("INVALID_REQUEST", "input")
    return caught.value


def test_only_known_fields_reach_the_engine() -> None:
    request = read_chat(
        json.dumps({"messages": HI, "model": "x", "id_slot": 3, "n_probs": 9, "user": "u"}).encode(), ROOM
    )
    assert set(json.loads(request.body)) == {"messages", "stream", "stream_options", "return_progress"}
    assert request.ignored == ("id_slot", "n_probs")


def test_it_is_always_a_stream_with_usage_and_progress() -> None:
    body = asked(stream=False, stream_options={"include_usage": False})
    assert (body["stream"], body["stream_options"], body["return_progress"]) == (True, {"include_usage": True}, True)


def test_null_is_as_good_as_absent() -> None:
    assert asked(temperature=None, stop=None, tools=None, response_format=None, n=None) == asked()


@pytest.mark.parametrize(
    ("fields", "there"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"stop": "x"}, {"stop": "x"}),
        ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"seed": 5}, {"seed": 5}),
        ({"seed": -1}, {"seed": 2**32 - 2}),
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"max_completion_tokens": 3}, {"max_tokens": 3}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 5}),
        ({"logit_bias": {"97": -100}}, {"logit_bias": {"97": -100}}),
        ({"response_format": {"type": "text"}}, {"response_format": {"type": "text"}}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    ],
)
def test_what_becomes_of_a_field(fields: dict[str, Any], there: dict[str, Any]) -> None:
    body = asked(**fields)
    assert {name: body[name] for name in there} == there
    assert "max_completion_tokens" not in body


def test_messages_are_brought_into_one_form() -> None:
    turns = [
        {"role": "developer", "content": "a", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d", "refusal": None, "audio": None},
    ]
    assert asked(messages=turns)["messages"] == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "bc"},
        {"role": "assistant", "content": "d"},
    ]


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": []}, "messages", r"is \[\]"),
        ({"messages": "hi"}, "messages", 'is "hi"'),
        ({"messages": [{"role": "frog", "content": "x"}]}, "messages[0].role", "roles are system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", "missing"),
        ({"messages": [*HI, {"role": "user", "content": 5}]}, "messages[1].content", "is 5"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type", "text only"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "later version"),
        ({"functions": [{"name": "f"}]}, "functions", "later version"),
        ({"tool_choice": "required"}, "tool_choice", "later version"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "later version"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"audio": {"voice": "x"}}, "audio", "text only"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "does not reason"),
        ({"web_search_options": {"x": 1}}, "web_search_options", "no network"),
        ({"grammar": 'root ::= "x"'}, "grammar", "response_format"),
        ({"n": 5}, "n", "is 5.*at most 4"),
        ({"n": 0}, "n", "is 0"),
        ({"max_tokens": 0}, "max_tokens", "is 0"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "3.*4"),
        ({"temperature": 2.5}, "temperature", "is 2.5"),
        ({"temperature": "hot"}, "temperature", 'is "hot"'),
        ({"top_p": -1}, "top_p", "is -1"),
        ({"stop": 5}, "stop", "is 5"),
        ({"stop": ""}, "stop", "length >= 1"),
        ({"seed": 1.5}, "seed", "is 1.5"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "token ids"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "is 21"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ],
)
def test_refusals_of_chats(fields: dict[str, Any], param: str, says: str) -> None:
    error = refused({"messages": HI, **fields})
    assert error.detail["param"] == param
    assert re.search(says, error.message), error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_refusals_of_completions(fields: dict[str, Any], param: str) -> None:
    assert refused(fields, completion=True).detail["param"] == param


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b'{"a":' * 5000, "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_bodies_that_are_none(data: bytes, says: str) -> None:
    error = refused(data)
    assert says in error.message
    assert "param" not in error.detail


def test_a_number_that_nothing_can_hold_is_named_with_its_field() -> None:
    error = refused(b'{"messages": [], "unheard_of": [1, 1e400]}')
    assert error.detail["param"] == "unheard_of"
    assert "unheard_of is [1, 1e400]: Number out of range" in error.message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "limit"), [(nested(65), 64), ({"enum": ["x"] * 2_000}, 2_000)], ids=["deep", "large"]
)
def test_schemas_are_bounded(schema: dict[str, Any], limit: int) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = refused({"messages": HI, "response_format": form})
    assert (error.detail["param"], error.detail["limit"]) == ("response_format", limit)
    assert error.detail["seen"] > limit


def test_prompts_are_counted() -> None:
    for prompt, count in (("a", 1), ([1, 2], 1), (["a", "b"], 2), ([[1], [2], [3]], 3)):
        request = read_completion(json.dumps({"prompt": prompt, "n": 2}).encode(), ROOM)
        assert (request.prompts, request.choices) == (count, 2 * count)
