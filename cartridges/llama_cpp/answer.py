"""From llama.cpp's chunks to the events of an answer stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from capdag.cartridge import CartridgeError
from capdag.errors import AttributionClass

from .request import EngineRequest, engine_refusal

Event = Mapping[str, Any]


class Answer:
    """Reads the chunks of one request in order.

    `accepted` becomes true with the first chunk: template and token count have passed. `prompt` is how far the prompts
    are, (tokens processed, tokens in all), until `in_prompt` becomes false: every choice has begun to be written.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._request = request
        self._begun: set[int] = set()
        self._last_finished = 0
        self._usages: dict[int, Mapping[str, Any]] = {}
        self._timings: Mapping[str, Any] | None = None
        self.accepted = False
        self.prompt = (0, 0)

    @property
    def in_prompt(self) -> bool:
        """True until every choice has begun."""
        return len(self._begun) < self._request.choices

    def read(self, chunk: bytes) -> Iterator[Event]:
        """Take a chunk, one JSON object, and give its events. Raises CartridgeError for an error in place of one."""
        message = msgspec.json.decode(chunk)
        if "error" in message:
            raise self._error(message["error"])
        self.accepted = True
        progress = message.get("prompt_progress")
        if progress is not None:
            self.prompt = (progress["processed"], progress["total"])
            return
        for choice in message["choices"]:
            yield from self._choice(choice)
        if message.get("usage") is not None:
            self._usages[self._last_finished] = message["usage"]
            self._timings = message.get("timings")

    def close(self) -> Event:
        """Give the last event, the usage. Raises CartridgeError if not every choice has been finished and counted."""
        missing = self._request.choices - len(self._usages)
        if missing:
            raise CartridgeError("HANDLER_ERROR", f"llama.cpp stopped before {missing} of the answers were finished")
        event: dict[str, Any] = {"usage": self._usage()}
        if self._timings is not None and self._request.choices == 1:
            event["timings"] = self._timings
        return event

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[Event]:
        index = choice["index"]
        self._begun.add(index)
        delta = choice.get("delta", choice)
        events: list[dict[str, Any]] = [
            {ours: delta[theirs]}
            for theirs, ours in (("content", "text"), ("text", "text"), ("reasoning_content", "reasoning"))
            if delta.get(theirs)
        ]
        logprobs = choice.get("logprobs")
        if logprobs is not None:
            # A token that is held back, or ends the text, has logprobs and no text.
            events = events or [{"text": ""}]
            events[-1]["logprobs"] = self._trimmed(logprobs)
        if choice.get("finish_reason") is not None:
            events.append({"finish": choice["finish_reason"]})
            self._last_finished = index
        for event in events:
            yield {**event, "choice": index} if index else event

    def _trimmed(self, logprobs: Mapping[str, Any]) -> Event:
        """Keep what OpenAI's API has, and of the alternatives as many as were asked for."""
        return {"content": [_entry(entry, self._request.top_logprobs) for entry in logprobs["content"]]}

    def _usage(self) -> Mapping[str, int | Mapping[str, int]]:
        """Add up the usage of all choices, where llama.cpp tells each choice's: a prompt counts once, not n times."""
        prompts = {index // self._request.n: usage for index, usage in self._usages.items()}
        prompt = sum(usage["prompt_tokens"] for usage in prompts.values())
        cached = sum(usage.get("prompt_tokens_details", {}).get("cached_tokens", 0) for usage in prompts.values())
        completion = sum(usage["completion_tokens"] for usage in self._usages.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _error(self, error: Mapping[str, Any]) -> CartridgeError:
        message = str(error.get("message", error))
        if error.get("type") == "exceed_context_size_error":
            return self._too_long(error["n_prompt_tokens"], error["n_ctx"])
        if not self.accepted and error.get("code") in (400, 501):
            return engine_refusal(message, self._request.prompt_field)
        return CartridgeError("HANDLER_ERROR", f"llama.cpp failed: {message}")

    def _too_long(self, seen: int, limit: int) -> CartridgeError:
        field = self._request.prompt_field
        return CartridgeError(
            "CONTEXT_LENGTH_EXCEEDED",
            f"{field} come to {seen:,} tokens and one request of this model has {limit:,}, prompt and answer together: "
            f"shorten {field}, or raise `context` in the model's settings",
            AttributionClass.INPUT,
            {"param": field, "limit": limit, "seen": seen},
        )


def _entry(entry: Mapping[str, Any], top: int) -> Event:
    kept = {key: entry[key] for key in ("token", "bytes", "logprob")}
    if "top_logprobs" in entry:
        kept["top_logprobs"] = [_entry(other, 0) for other in entry["top_logprobs"][:top]]
    return kept
