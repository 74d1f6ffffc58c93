"""What a request needs, as a cap URN (protocol-spec/caps.md, Ability tags): the only place that knows which field asks
for which ability. Whoever has all of it is eligible, by dispatch alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from .catalogue import request_cap, slug_of

if TYPE_CHECKING:
    # At run time the import goes the other way: reading a body includes saying what it needs.
    from .bodies import ChatBody, Message

_BY_PART: Final = {"image_url": "vision", "input_audio": "audio", "file": "files"}
"""The ability that reads a kind of message part. Text needs none; kinds nobody knows are the cartridge's to refuse."""
_BYTES_PER_TOKEN: Final = 4
"""Of UTF-8. English has about 4, program text and other scripts have fewer: the estimate is a low one."""


def chat_needs(body: ChatBody, *, any_model: bool = False) -> str:
    """Return the canonical text of the cap that a checked chat body asks for.

    With `any_model` the body's model is not asked for and models compete, so the request asks for the rung of the
    context ladder on which its texts and the answer have room by estimate. The exact check is the cartridge's.
    """
    abilities = chat_abilities(body)
    if any_model:
        return request_cap("chat", None, frozenset({*abilities, *_rung(body)}))
    return request_cap("chat", slug_of(body.model), frozenset(abilities))


def chat_abilities(body: ChatBody) -> Mapping[str, str]:
    """Return the abilities that a checked chat body asks for, each with the field that does."""
    of_messages = {ability: "messages" for message in body.messages for ability in _of_message(message)}
    return {**of_messages, **dict(_of_fields(body))}


def _of_fields(body: ChatBody) -> Iterator[tuple[str, str]]:
    if body.tools and body.tool_choice != "none":
        yield "tools", "tools"
    if body.response_format is not None and body.response_format.type != "text":
        yield "json-schema", "response_format"
    if body.logprobs:
        yield "logprobs", "logprobs"


def _of_message(message: Message) -> Iterator[str]:
    if message.tool_calls or message.role in ("tool", "function"):
        yield "tools"
    if isinstance(message.content, list):
        yield from (_BY_PART[part.type] for part in message.content if part.type in _BY_PART)


def _rung(body: ChatBody) -> Iterator[str]:
    """Yield the first rung with room for prompt and answer; there is none below 2 Ki tokens."""
    size = sum(len(text.encode()) for message in body.messages for text in _texts(message))
    tokens = size // _BYTES_PER_TOKEN + (body.max_completion_tokens or body.max_tokens or 0)
    if tokens > 1024:
        yield f"ctx-{1 << ((tokens - 1) // 1024).bit_length()}k"


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    elif message.content is not None:
        yield from (part.text for part in message.content if part.text is not None)
