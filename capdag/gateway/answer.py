"""What a cartridge answers, event by event, with the rules it has to keep (contracts: Capabilities of inference).

An event is a map with one of `text`, `reasoning`, `tool`, `finish`, and optionally `choice` and `logprobs`; the last
event is the map with `usage`. A broken rule raises RequestFailedError: what a client has been shown is never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from capdag.errors import AttributionClass, RequestFailedError

from .sse import dump

TOOLS_LIMIT = 16 * 1024 * 1024
"""Bytes of JSON that the tool calls of one answer may have: they are held to its end, in a stream too."""

_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})


class Delta(NamedTuple):
    """A piece of one choice, under the name it has in OpenAI's delta object.

    `value` is text, or for `tool_calls` one fragment of one call. `logprobs` has the tokens of the text under
    `content`; `offset` is the length of the choice's text before.
    """

    choice: int
    field: str
    value: Any
    logprobs: Mapping[str, Any] | None = None
    offset: int = 0


class _Call:
    """One tool call in the making."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self.index = index
        self.id = call_id
        self.name = name
        self.arguments: list[str] = []

    def opening(self) -> dict[str, Any]:
        """Return the first fragment: id, type and name are said once, here."""
        function = {"name": self.name, "arguments": ""}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}

    def fragment(self, arguments: str) -> dict[str, Any]:
        """Add to the arguments and return the fragment that says so."""
        self.arguments.append(arguments)
        return {"index": self.index, "function": {"arguments": arguments}}

    def whole(self) -> dict[str, Any]:
        """Return the call as a body that is not streamed has it."""
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}

    def is_whole(self) -> bool:
        """Whether the arguments are JSON: those of a call that was cut short are not."""
        try:
            msgspec.json.decode("".join(self.arguments))
        except msgspec.DecodeError:
            return False
        return True


class _Choice:
    """One of the answers that a request asked for."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.finish: str | None = None
        self.length = 0


class Answer:
    """Reads the events of one answer.

    `fields` names the kinds of event that carry text, each with its field in OpenAI's delta.
    """

    def __init__(self, choices: int, fields: Mapping[str, str], *, tools: bool) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._fields = fields
        self._tools = tools
        self._tools_size = 0
        self.usage: dict[str, Any] | None = None
        self.timings: dict[str, Any] | None = None

    def is_open(self, index: int) -> bool:
        """Whether more of this choice may come."""
        return self.usage is None and self._choices[index].finish is None

    def passed(self, index: int, text: str) -> None:
        """Note a text that `take` need not look at: one of an open choice, alone in its event."""
        self._choices[index].length += len(text)

    def take(self, event: object) -> list[Delta]:
        """Take the next event and return what it adds to the answer, in order."""
        if not isinstance(event, dict):
            raise broken_answer(f"an event is {type(event).__name__}, not a map")
        if self.usage is not None:
            raise broken_answer("an event came after usage, which is the last")
        if "usage" in event:
            self._take_usage(event)
            return []
        index = self._index_of(event)
        choice = self._choices[index]
        if choice.finish is not None:
            raise broken_answer(f"an event for choice {index} came after its finish")
        if "finish" in event:
            return self._finish(index, choice, event["finish"])
        if "tool" in event and self._tools:
            return [Delta(index, "tool_calls", [part]) for part in self._take_tool(choice, event["tool"])]
        return self._take_text(index, choice, event)

    def _index_of(self, event: Mapping[str, Any]) -> int:
        index = event.get("choice", 0)
        if type(index) is not int or not 0 <= index < len(self._choices):
            raise broken_answer(f"an event is for choice {index!r}; {len(self._choices)} were asked for")
        return index

    def _take_tool(self, choice: _Choice, tool: object) -> list[dict[str, Any]]:
        fragments = _tool_fragments(choice, tool)
        self._tools_size += len(dump(fragments))
        if self._tools_size > TOOLS_LIMIT:
            raise broken_answer(f"its tool calls are over {TOOLS_LIMIT:,} bytes")
        return fragments

    def _take_text(self, index: int, choice: _Choice, event: Mapping[str, Any]) -> list[Delta]:
        for kind, field in self._fields.items():
            if kind in event:
                text = event[kind]
                if not isinstance(text, str):
                    raise broken_answer(f"{kind} is {type(text).__name__}, not text")
                logprobs, offset = _logprobs(event.get("logprobs")), choice.length
                choice.length += len(text)
                return [Delta(index, field, text, logprobs, offset)] if text or logprobs else []
        raise broken_answer(f"an event has {sorted(map(str, event))}, none of which this route can show")

    def _finish(self, index: int, choice: _Choice, reason: object) -> list[Delta]:
        """Settle the reason by what was sent: `tool_calls` if there was a call, and only then.

        A call that the token limit cut short is no call: its reason stays `length`, or a client would run it.
        """
        if not isinstance(reason, str) or reason not in _REASONS:
            raise broken_answer(f"finish is {reason!r}; it must be one of {', '.join(sorted(_REASONS))}")
        added = _close_call(choice) if reason != "length" else []
        if reason in ("stop", "tool_calls"):
            reason = "tool_calls" if choice.calls else "stop"
        elif reason == "length" and choice.calls and choice.calls[-1].is_whole():
            reason = "tool_calls"
        choice.finish = str(reason)
        return [Delta(index, "tool_calls", [part]) for part in added]

    def _take_usage(self, event: Mapping[str, Any]) -> None:
        usage, timings = event["usage"], event.get("timings")
        counts = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
        if not counts or any(type(count) is not int or count < 0 for count in counts):
            raise broken_answer("usage must be a map with prompt_tokens and completion_tokens as integers from 0 on")
        if not _is_json(usage) or not _is_json(timings):
            raise broken_answer("usage and timings must be maps that JSON can hold: texts as keys, no bytes")
        self.usage = {**usage, "total_tokens": sum(counts)}
        self.timings = timings if isinstance(timings, dict) else None

    def check_complete(self) -> None:
        """Check at the end of the stream that nothing is missing: an answer cut short must not look whole."""
        for index, choice in enumerate(self._choices):
            if choice.finish is None:
                raise broken_answer(f"it ended without finish for choice {index}")
        if self.usage is None:
            raise broken_answer("it ended without usage")

    def finish_of(self, index: int) -> str:
        """Return the settled finish reason of a choice of a complete answer."""
        reason = self._choices[index].finish
        assert reason is not None
        return reason

    def calls_of(self, index: int) -> list[dict[str, Any]]:
        """Return the tool calls of a choice, whole."""
        return [call.whole() for call in self._choices[index].calls]


def broken_answer(what: str) -> RequestFailedError:
    """Return the failure of a request whose cartridge broke the contract of its answer."""
    return RequestFailedError(
        "PROTOCOL_ERROR",
        AttributionClass.INTERNAL,
        f"the cartridge's answer is broken: {what}; report it to its author",
    )


def _tool_fragments(choice: _Choice, tool: object) -> list[dict[str, Any]]:
    """Return the fragments for one tool event. Calls come one after another: clients mix up interleaved ones."""
    if not isinstance(tool, dict):
        raise broken_answer(f"tool is {type(tool).__name__}, not a map")
    index, arguments = tool.get("index"), tool.get("arguments") or ""
    if not isinstance(arguments, str):
        raise broken_answer(f"tool arguments are {type(arguments).__name__}, not the text of a JSON object")
    begun = len(choice.calls)
    fragments: list[dict[str, Any]] = []
    if index == begun:
        fragments += _close_call(choice)
        fragments.append(_open_call(choice, tool).opening())
    elif index != begun - 1:
        due = f"{begun - 1} or {begun}" if begun else "0"
        raise broken_answer(f"a tool event has index {index!r} where {due} was due")
    if arguments:
        fragments.append(choice.calls[-1].fragment(arguments))
    return fragments


def _open_call(choice: _Choice, tool: Mapping[str, Any]) -> _Call:
    name, call_id = tool.get("name"), tool.get("id")
    if not isinstance(name, str) or not name:
        raise broken_answer("the first event of a tool call needs its name")
    known = isinstance(call_id, str) and call_id
    call = _Call(len(choice.calls), str(call_id) if known else f"call_{uuid4().hex}", name)
    choice.calls.append(call)
    return call


def _close_call(choice: _Choice) -> list[dict[str, Any]]:
    """Return the fragment that a call without arguments still needs: clients parse the joined text as JSON."""
    if choice.calls and not choice.calls[-1].arguments:
        return [choice.calls[-1].fragment("{}")]
    return []


def _logprobs(value: object) -> Mapping[str, Any] | None:
    """Return an event's logprobs as OpenAI's chat object; a bare list of tokens is its `content`."""
    found = {"content": value} if isinstance(value, list) else value
    if found is None:
        return None
    tokens = found.get("content") if isinstance(found, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, dict) and _is_json(token) for token in tokens):
        raise broken_answer("logprobs must be a map with the list of tokens, as JSON has them, as content")
    return {"content": tokens}


def _is_json(value: object) -> bool:
    """Whether JSON can hold a value as it is: CBOR has bytes, and maps with keys of other types."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    return value is None or isinstance(value, (str, int, float))
