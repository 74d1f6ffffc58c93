"""From an OpenAI body to what llama.cpp is asked.

Three kinds of fields: those of `body` are honoured; those in `_REFUSED` would change the answer and are refused unless
they ask for nothing; the rest is dropped, and named in `EngineRequest.ignored` unless it is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from capdag.cartridge import CartridgeError

from .body import (
    Body,
    ChatBody,
    CompletionBody,
    JsonSchema,
    Message,
    Sampling,
    check_fields,
    read_fields,
    refusal,
)
from .room import Room

_DEFAULT_COMPLETION_TOKENS = 16
"""What a completion without max_tokens gets, as OpenAI's API says."""

_SEEDS = 2**32 - 1
"""llama.cpp's seeds are 0 up to this, which itself means a random one."""

_SCHEMA_VALUES, _SCHEMA_DEPTH = 2_000, 64
"""Most JSON values in a schema, and how deep they may lie: llama.cpp takes seconds over larger ones, in which nobody
else gets a token, and its stack has an end."""


class EngineRequest(NamedTuple):
    """What llama.cpp is asked: `prompts` prompts, and `n` answers to each.

    `top_logprobs` is how many alternatives a token's logprobs keep, `prompt_field` the field to blame for a prompt that
    is too long, `ignored` the fields of the body that were dropped.
    """

    body: bytes
    prompts: int
    n: int
    top_logprobs: int
    prompt_field: str
    ignored: tuple[str, ...]

    @property
    def choices(self) -> int:
        """How many answers are due."""
        return self.prompts * self.n


def read_chat(data: bytes, room: Room) -> EngineRequest:
    """Translate a chat body. Raises CartridgeError INVALID_REQUEST, or CONTEXT_LENGTH_EXCEEDED for messages that can
    in no way fit, with the field in `detail`."""
    body, ignored = _read(data, ChatBody)
    room.check_text("messages", (text for turn in body.messages for text in _texts(turn)), len(body.messages))
    asked = _asked(body, room.slots)
    asked["messages"] = [_turn(f"messages[{number}]", message) for number, message in enumerate(body.messages)]
    limit = asked.pop("max_completion_tokens", None)
    if limit is not None:
        if body.max_tokens not in (None, limit):
            raise refusal(
                f"max_tokens is {body.max_tokens} and max_completion_tokens {limit}: send one of them, or equal ones",
                "max_completion_tokens",
            )
        asked["max_tokens"] = limit
    if body.top_logprobs and not body.logprobs:
        raise refusal("top_logprobs needs logprobs: true beside it", "top_logprobs")
    if body.logprobs:
        asked["top_logprobs"] = max(1, body.top_logprobs or 0)
    if isinstance(body.response_format, JsonSchema):
        _check_schema(body.response_format.json_schema.schema)
    return _finish(asked, body, 1, body.top_logprobs or 0, ignored)


def read_completion(data: bytes, room: Room) -> EngineRequest:
    """Translate a completion body. Raises as `read_chat`."""
    body, ignored = _read(data, CompletionBody)
    prompts = _prompts(body.prompt)
    room.check_prompts("prompt", prompts)
    asked = _asked(body, room.slots)
    asked.setdefault("max_tokens", _DEFAULT_COMPLETION_TOKENS)
    if body.logprobs is not None:
        asked["logprobs"] = max(1, body.logprobs)
    return _finish(asked, body, len(prompts), body.logprobs or 0, ignored)


def engine_refusal(message: str, prompt_field: str) -> CartridgeError:
    """Return the error for a body that llama.cpp refused with `message`, blaming the field that it speaks of."""
    named = re.match(r"Field '(\w+)'", message)
    if named is not None:
        return refusal(f"llama.cpp refused the request: {message}", named[1])
    _, schema, fault = message.partition("JSON schema error at ")
    if schema:
        return refusal(f"response_format: the JSON schema cannot be followed, at {fault}", "response_format")
    if "grammar" in message:  # what a schema is turned into
        return refusal("response_format: llama.cpp cannot follow this JSON schema: simplify it", "response_format")
    return refusal(f"llama.cpp refused the request: {message}", prompt_field)


def _read(data: bytes, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    fields = read_fields(data)
    for name, (asks_nothing, remedy) in _REFUSED.items():
        if name in fields and not asks_nothing(fields[name]):
            raise refusal(f"{name} is not supported by this model's cartridge: {remedy}", name)
    ignored = set(fields) - set(kind.__struct_fields__) - _HARMLESS - set(_REFUSED)
    return check_fields(fields, kind), tuple(sorted(ignored))


def _asked(body: Sampling, slots: int) -> dict[str, Any]:
    """Return the body as builtins, with what both kinds share brought into llama.cpp's form."""
    if body.n is not None and body.n > slots:
        raise refusal(f"n is {body.n}, and this model answers at most {slots} at once", "n", limit=slots, seen=body.n)
    asked: dict[str, Any] = msgspec.to_builtins(body)
    if body.seed is not None:
        asked["seed"] = body.seed % _SEEDS
    return asked


def _turn(where: str, message: Message) -> dict[str, Any]:
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise refusal(f"{where}.content is missing: send a text, or a list of text parts", f"{where}.content")
    turn: dict[str, Any] = msgspec.to_builtins(message)
    if message.role == "developer":
        turn["role"] = "system"
    if isinstance(message.content, list):
        turn["content"] = "".join(part.text for part in message.content)
    return turn


def _texts(message: Message) -> Iterator[str]:
    """Yield all texts of a message that a template may show."""
    if isinstance(message.content, str):
        yield message.content
    elif message.content is not None:
        yield from (part.text for part in message.content)
    if message.tool_calls:
        yield msgspec.json.encode(message.tool_calls).decode()
    if message.tool_call_id is not None:
        yield message.tool_call_id


def _prompts(prompt: str | list[str | int | list[int]]) -> list[Any]:
    """Return the prompts, each a text or a list of token ids."""
    kinds = {type(part) for part in prompt}
    if len(kinds) > 1:
        raise refusal("prompt mixes texts and token ids: send a list of one kind", "prompt")
    several = isinstance(prompt, list) and kinds != {int}
    if not prompt or (several and not all(prompt)):
        raise refusal("prompt is empty: send at least one character or token", "prompt")
    return prompt if isinstance(prompt, list) and several else [prompt]


def _check_schema(schema: Mapping[str, Any]) -> None:
    seen, level, depth = 0, [schema], 0
    while level:
        seen, depth = seen + len(level), depth + 1
        for name, most, have in (("values", _SCHEMA_VALUES, seen), ("levels", _SCHEMA_DEPTH, depth)):
            if have > most:
                raise refusal(
                    f"response_format: the JSON schema has more than {most:,} {name}: simplify it",
                    "response_format", limit=most, seen=have,
                )  # fmt: skip
        level = [inner for value in level for inner in _inner(value)]


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _finish(
    asked: dict[str, Any], body: ChatBody | CompletionBody, prompts: int, top: int, ignored: tuple[str, ...]
) -> EngineRequest:
    # Always a stream: only that can be cancelled. return_progress makes the prompt phase speak, and so cancellable too.
    asked |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    return EngineRequest(msgspec.json.encode(asked), prompts, body.n or 1, top, body.prompt_field, ignored)


def _is_empty(value: object) -> bool:
    return value in ([], {}, "", False)


def _is_left_to_us(value: object) -> bool:
    return value in ("none", "auto")


_NO_TOOLS = "tool calls come with a later version; leave it out"
_TEXT_ONLY = "it writes text only; leave it out"
_USE_FORMAT = "send response_format with a JSON schema"

_REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "tools": (_is_empty, _NO_TOOLS),
    "functions": (_is_empty, _NO_TOOLS),
    "tool_choice": (_is_left_to_us, _NO_TOOLS),
    "function_call": (_is_left_to_us, _NO_TOOLS),
    "audio": (_is_empty, _TEXT_ONLY),
    "modalities": (lambda value: value == ["text"], _TEXT_ONLY),
    "web_search_options": (_is_empty, "it has no network; leave it out"),
    "reasoning_effort": (lambda value: value in ("none", "minimal"), "it does not reason apart; leave it out"),
    "echo": (_is_empty, "send echo: false and put the prompt before the answer yourself"),
    "suffix": (_is_empty, "it continues text and fills no gaps; leave it out"),
    "best_of": (lambda value: value == 1, "ask for n answers and choose among them"),
    "grammar": (_is_empty, _USE_FORMAT),
    "json_schema": (_is_empty, _USE_FORMAT),
}
"""Fields that would change the answer: which values ask for nothing, and what to do instead."""

_HARMLESS = frozenset((
    "model", "stream", "stream_options", "user", "metadata", "store", "service_tier", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "parallel_tool_calls", "prediction",
))  # fmt: skip
"""Fields of OpenAI's API that leave the answer as it is, or that the gateway has dealt with."""
