# ruff: noqa: PT017 - these are no tests of pytest, whose `raises` would hide what else comes

"""JSON bodies of the gateway. Any bytes give a checked request, or an ApiError of status 400 with words and a code; the
body that goes on is read as the same request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from capdag.gateway.bodies import read_chat, read_completion
from capdag.gateway.errors import ApiError


def seeds() -> Iterator[bytes]:
    """Bodies that use every known field, and some that must not pass."""
    message = {"role": "user", "content": "hi"}
    chat: dict[str, Any] = {"model": "m", "messages": [message]}
    part = {"type": "text", "text": "a"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    for more in (
        {}, {"stream": True, "stream_options": {"include_usage": True}}, {"n": 2, "stop": ["a"], "seed": 1},
        {"messages": [{"role": "user", "content": [part]}]}, {"tools": [tool], "tool_choice": "auto"},
        {"messages": [message, {"role": "assistant", "tool_calls": [call]}, result]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}},
        {"temperature": 0.5, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2, "max_completion_tokens": 5},
        {"logprobs": True, "top_logprobs": 5, "logit_bias": {"1": 2}}, {"modalities": ["text"], "user": "u"},
    ):  # fmt: skip
        yield json.dumps({**chat, **more}).encode()
    for prompt in ("a", ["a"], ["a", "b"], [1, 2], [[1]], None):
        yield json.dumps({"model": "m", "prompt": prompt, "max_tokens": 3, "logprobs": 1}).encode()


def check(data: bytes) -> None:
    """See the module."""
    for read in (read_chat, read_completion):
        try:
            asked = read(data)
        except ApiError as error:
            assert (error.status, error.kind) == (400, "invalid_request_error")
            assert error.message
            assert error.http_code
        else:
            assert asked.model
            assert asked.choices >= 1
            assert read(asked.body) == asked
