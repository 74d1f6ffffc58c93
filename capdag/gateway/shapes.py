"""The OpenAI forms of an answer: chunks of a stream and whole bodies, for chat and for completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from .answer import Delta


class WholeChoice(NamedTuple):
    """One complete choice; `texts` by their field of a delta."""

    position: int
    texts: Mapping[str, str]
    calls: list[dict[str, Any]]
    logprobs: Mapping[str, Any] | None
    reason: str


class Shape(Protocol):
    """What differs between the two routes. Every method returns one element of `choices`."""

    operation: str
    """The cap's operation: chat or completion."""
    id_prefix: str
    chunk_object: str
    whole_object: str
    text_fields: Mapping[str, str]
    """Kinds of text event, each with its field of a delta."""
    tools: bool

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk that opens a choice, if this route has one."""

    def piece(self, delta: Delta) -> dict[str, Any]:
        """The chunk for one delta."""

    def silence(self) -> dict[str, Any]:
        """The chunk that says nothing: comments and empty events would break clients."""

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        """The chunk that ends a choice."""

    def whole(self, choice: WholeChoice) -> dict[str, Any]:
        """The choice of a body that is not streamed."""


class ChatShape:
    """`chat.completion` and its chunks."""

    operation = "chat"
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"
    text_fields: Mapping[str, str] = {"text": "content", "reasoning": "reasoning_content"}
    tools = True

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role, once: clients that add up deltas would show a repeat."""
        return _chunk(index, {"role": "assistant", "content": ""})

    def piece(self, delta: Delta) -> dict[str, Any]:
        """One of content, reasoning_content and tool_calls: some clients take only the first of several."""
        chunk = _chunk(delta.choice, {delta.field: delta.value})
        return chunk if delta.logprobs is None else {**chunk, "logprobs": delta.logprobs}

    def silence(self) -> dict[str, Any]:
        """An empty delta of the first choice."""
        return _chunk(0, {})

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        """An empty delta with the reason: a missing delta loses it in some clients."""
        return _chunk(index, {}, reason)

    def whole(self, choice: WholeChoice) -> dict[str, Any]:
        """A message. With tool calls and no text its content is null."""
        content, reasoning = choice.texts.get("content", ""), choice.texts.get("reasoning_content")
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if choice.calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if choice.calls:
            message["tool_calls"] = choice.calls
        return {
            "index": choice.position,
            "message": message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.reason,
        }


def _chunk(index: int, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason}


class CompletionShape:
    """`text_completion`, streamed or not."""

    operation = "completion"
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    whole_object = "text_completion"
    text_fields: Mapping[str, str] = {"text": "text"}
    tools = False

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        """This route has no roles."""
        return None

    def piece(self, delta: Delta) -> dict[str, Any]:
        """The text."""
        return _text(delta.choice, delta.value, _completion_logprobs(delta.logprobs, delta.offset))

    def silence(self) -> dict[str, Any]:
        """No text, of the first choice."""
        return _text(0, "")

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        """No text, with the reason."""
        return _text(index, "", reason=reason)

    def whole(self, choice: WholeChoice) -> dict[str, Any]:
        """The text of a choice."""
        logprobs = _completion_logprobs(choice.logprobs, 0)
        return _text(choice.position, choice.texts.get("text", ""), logprobs, choice.reason)


def _text(index: int, text: str, logprobs: object = None, reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _completion_logprobs(logprobs: Mapping[str, Any] | None, offset: int) -> dict[str, list[Any]] | None:
    """Return chat's logprobs in the older form: four lists side by side, and where in the text each token begins."""
    if logprobs is None:
        return None
    lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in logprobs["content"]:
        text, others = token.get("token", ""), token.get("top_logprobs") or ()
        lists["tokens"].append(text)
        lists["token_logprobs"].append(token.get("logprob"))
        lists["top_logprobs"].append({other.get("token"): other.get("logprob") for other in others})
        lists["text_offset"].append(offset)
        offset += len(text)
    return lists


CHAT = ChatShape()
COMPLETION = CompletionShape()
