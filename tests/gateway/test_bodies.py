"""Request bodies: what is taken, what is refused, and how well the refusal tells."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capdag.cartridge import CartridgeError
from capdag.gateway.bodies import ChatBody, CompletionBody, read_chat, read_completion
from capdag.gateway.errors import ApiError
from capdag.gateway.sse import dump
from cartridges.llama_cpp.body import read_fields

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"max_completion_tokens": 5},
        {"stop": "x"},
        {"stop": ["x", "y"]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        {"messages": [USER, {"role": "tool", "content": "4", "tool_call_id": "1"}]},
        {"tools": [], "tool_choice": "auto", "functions": []},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function"}},
        {"parallel_tool_calls": True, "user": "u", "metadata": {"a": 1}, "store": False, "service_tier": "auto"},
        {"prompt_cache_key": "k", "safety_identifier": "s", "seed": 7, "n": 2, "unheard_of": {"deep": [1, None]}},
        {"logprobs": True, "top_logprobs": 2, "logit_bias": {"50256": -100}},
        {"stream": None, "temperature": None, "audio": None, "modalities": ["text"]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    ],
)
def test_what_clients_send_is_taken_and_reaches_the_cartridge_as_it_came(fields: dict[str, Any]) -> None:
    body = chat(**fields)
    assert read_chat(body).body == body


def test_what_the_gateway_itself_needs_is_read() -> None:
    asked = read_chat(chat(stream=True, stream_options={"include_usage": True}, n=3))
    assert (asked.model, asked.stream, asked.include_usage, asked.choices) == ("m", True, True, 3)
    asked = read_chat(chat(stream_options={"include_usage": False}))
    assert (asked.stream, asked.include_usage, asked.choices) == (False, False, 1)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": 5}, "model", "model must be string, not 5"),
        ({"model": ""}, "model", "not empty"),
        ({"messages": []}, "messages", "not empty"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "system, developer, user"),
        ({"messages": [USER, {"role": "user", "content": 7}]}, "messages[1].content", "not 7"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "needs text"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", "tool_calls"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "missing"),
        ({"stream": "yes"}, "stream", 'boolean or null, not "yes"'),
        ({"n": 0}, "n", ">= 1, not 0"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "send one of them"),
        ({"max_tokens": -1}, "max_tokens", "not -1"),
        ({"temperature": 3}, "temperature", "<= 2"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"functions": [{"name": "f"}]}, "functions", "send tools"),
        ({"function_call": "auto"}, "function_call", "tool_choice"),
        ({"audio": {"voice": "x"}}, "audio", "leave it out"),
        ({"modalities": ["text", "audio"]}, "modalities", '"audio"'),
        ({"web_search_options": {}}, "web_search_options", "leave it out"),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
        ({"tool_choice": "required"}, "tool_choice", "send tools"),
        ({"tool_choice": "always"}, "tool_choice", "none, auto, required"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"stop": 5}, "stop", "string or array or null, not 5"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_a_remedy(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat(chat(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param.split("[")[0] in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"{", "not valid JSON"),
        (json.dumps({"model": "m", "prompt": "x", "messages": [USER]}).encode() + b" x", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'{"model": "m", "x": "\xff"}', "byte 0xff at position 21"),
        (b'\xef\xbb\xbf{"model": "m"}', "not valid JSON"),
        (b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deep"),
    ],
)
def test_a_body_that_is_no_json_object_is_told_apart(body: bytes, words: str) -> None:
    for read in (read_chat, read_completion):
        with pytest.raises(ApiError) as caught:
            read(body)
        assert (caught.value.status, caught.value.http_code) == (400, "invalid_json")
        assert words in caught.value.message


def member(name: str, value: str) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "%s": %s}' % (
        name.encode(),
        value.encode(),
    )


@pytest.mark.parametrize("value", ["1e400", "-1e999", "[1e400]", '{"a": 1e400}', '{"1": 1e400}'])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "n", "logit_bias", "stop", "tools", "messages"])
def test_a_number_that_nothing_can_hold_is_a_fault_of_its_field(field: str, value: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat(member(field, value))
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)
    assert "1e" in caught.value.message or "-1e999" in caught.value.message


def test_numbers_of_unknown_fields_pass_as_they_came() -> None:
    body = b'{"model": "m", "prompt": ["a"], "unheard_of": 1e400, "id": 123456789012345678901234567890}'
    fields = read_completion(body).body
    assert b"1e400" in fields
    assert b"123456789012345678901234567890" in fields


_VALUES = st.recursive(
    st.one_of(
        st.sampled_from(
            ("null", "true", "0", "-0.0", "1e400", "-1e400", "1E-999", "9" * 400, '"\\ud800"', '"\\u0000"')
        ),
        st.integers().map(str),
        st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
        st.text(max_size=5).map(json.dumps),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(
            st.sampled_from(("type", "role", "text", "content", "function", "1", "\\ud800", "é")), inner
        ).map(lambda items: "{" + ", ".join(f'"{key}": {item}' for key, item in items.items()) + "}"),
    ),
    max_leaves=6,
)
_FIELDS = st.sampled_from(sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "unheard_of"}))


@settings(max_examples=1000, deadline=None)
@given(fields=st.dictionaries(_FIELDS, _VALUES, max_size=4))
def test_whatever_a_field_holds_is_taken_or_is_a_400(fields: dict[str, str]) -> None:
    whole = {"model": '"m"', "messages": '[{"role": "user", "content": "hi"}]', "prompt": '["x"]', **fields}
    body = ("{" + ", ".join(f'"{name}": {value}' for name, value in whole.items()) + "}").encode()
    for read in (read_chat, read_completion):
        try:
            assert read(body).model
        except ApiError as error:
            assert error.status == 400  # noqa: PT017 - what else is raised must come through
            dump(error.body())
    try:
        read_fields(body)
    except CartridgeError as refused:
        assert refused.code == "INVALID_REQUEST"  # noqa: PT017 - as above


def test_a_long_value_is_shown_short() -> None:
    with pytest.raises(ApiError) as caught:
        read_chat(chat(stream="x" * 10_000))
    assert len(caught.value.message) < 200


def test_a_list_of_one_prompt_reaches_the_cartridge_as_text() -> None:
    asked = read_completion(b'{"model": "m", "prompt": ["a"], "unheard_of": 1}')
    assert json.loads(asked.body) == {"model": "m", "prompt": "a", "unheard_of": 1}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [(["a", "b"], "one prompt a request"), ([1, 2], "token ids"), ([[1]], "token ids"), ([], "empty"), (5, "not 5")],
)
def test_other_prompts_are_refused(prompt: Any, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_completion(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    assert words in caught.value.message
