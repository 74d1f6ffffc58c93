"""Request bodies: what is checked before a cartridge sees them (client contract, Requests the gateway must accept).

Known fields are typed here, unknown ones pass unseen: the body goes to the cartridge as it came. What would change
the answer and cannot be honoured is refused; what is harmless is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from .errors import ApiError, bad_request
from .needs import chat_abilities

_Text = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Absent = Any | UnsetType
"""For fields that are refused: any value but null counts as given."""

MAX_CHOICES = 128


class Part(msgspec.Struct):
    """One part of a message's content."""

    type: _Text
    text: str | None = None


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class Function(msgspec.Struct):
    """The function of a tool."""

    name: _Text
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    """One tool that the model may call."""

    type: str
    function: Function


class StreamOptions(msgspec.Struct):
    """What a streamed answer should carry besides the text."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    """The form asked of the answer."""

    type: str
    json_schema: dict[str, Any] | None = None


class _Sampling(msgspec.Struct):
    """Fields that both routes know."""

    model: _Text
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None


class ChatBody(_Sampling, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    audio: _Absent = UNSET
    functions: _Absent = UNSET
    function_call: _Absent = UNSET
    web_search_options: _Absent = UNSET


class CompletionBody(_Sampling, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[Any]
    suffix: str | None = None
    echo: bool | None = None
    best_of: _Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None


class Asked(NamedTuple):
    """A checked request: the body for the cartridge, and what the gateway itself has to know of it.

    `abilities` is what a cap must claim for it, each with the field that asks for it.
    """

    model: str
    body: bytes
    stream: bool
    include_usage: bool
    choices: int
    abilities: Mapping[str, str]


_Body = TypeVar("_Body", bound=_Sampling)


Reader = Callable[[bytes], Asked]
"""Reads the body of one route. Raises ApiError 400 naming the field, the value seen and the remedy."""


def read_chat(body: bytes) -> Asked:
    """Read the body of a chat request."""
    asked = _decode(_CHAT, body)
    _check_limits(asked)
    _check_abilities(asked)
    for index, message in enumerate(asked.messages):
        _check_message(f"messages[{index}]", message)
    return _asked(asked, body, chat_abilities(asked))


def read_completion(body: bytes) -> Asked:
    """Read the body of a completion request."""
    asked = _decode(_COMPLETION, body)
    if isinstance(asked.prompt, list):
        body = _with_single_prompt(body, asked.prompt)
    return _asked(asked, body, {} if asked.logprobs is None else {"logprobs": "logprobs"})


def _asked(asked: _Sampling, body: bytes, abilities: Mapping[str, str]) -> Asked:
    options = asked.stream_options
    usage = options is not None and options.include_usage is True
    return Asked(asked.model, body, asked.stream is True, usage, asked.n or 1, abilities)


def _check_limits(asked: ChatBody) -> None:
    if asked.max_tokens and asked.max_completion_tokens and asked.max_tokens != asked.max_completion_tokens:
        raise bad_request(
            f"max_tokens is {asked.max_tokens} and max_completion_tokens is {asked.max_completion_tokens}: "
            "they mean the same, send one of them",
            "max_tokens",
        )
    if asked.top_logprobs is not None and not asked.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")


_REFUSED = {
    "audio": "audio output is not served: leave it out",
    "functions": "it is deprecated: send tools",
    "function_call": "it is deprecated: send tool_choice",
    "web_search_options": "no web search is served: leave it out",
}


def _check_abilities(asked: ChatBody) -> None:
    for param, remedy in _REFUSED.items():
        if getattr(asked, param) not in (UNSET, None, []):
            raise bad_request(f"{param} cannot be honoured: {remedy}", param, "unsupported_parameter")
    for modality in asked.modalities or ():
        if modality != "text":
            raise bad_request(
                f'modalities has {_show(modality)}: only "text" is served', "modalities", "unsupported_value"
            )
    for index, tool in enumerate(asked.tools or ()):
        _check_word(f"tools[{index}].type", tool.type, ("function",))
    if isinstance(asked.tool_choice, str):
        _check_word("tool_choice", asked.tool_choice, ("none", "auto", "required"))
    if not asked.tools and asked.tool_choice not in (None, "none", "auto"):
        raise bad_request("tool_choice asks for a call but tools has none: send tools", "tool_choice")
    if asked.response_format is not None:
        _check_format(asked.response_format)


def _check_format(form: ResponseFormat) -> None:
    _check_word("response_format.type", form.type, ("text", "json_object", "json_schema"))
    if form.type == "json_schema" and form.json_schema is None:
        where = "response_format.json_schema"
        raise bad_request(f"{where} is missing: send it, or type json_object", where)


def _check_word(path: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise bad_request(f"{path} must be one of {', '.join(known)}, not {_show(word)}", path, "unsupported_value")


_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def _check_message(path: str, message: Message) -> None:
    _check_word(f"{path}.role", message.role, _ROLES)
    if message.content is None and message.role != "assistant":
        raise bad_request(f"{path}.content is missing: a {message.role} message needs text", f"{path}.content")
    if message.content is None and not message.tool_calls and message.refusal is None:
        raise bad_request(
            f"{path}.content is missing: an assistant message needs text or tool_calls", f"{path}.content"
        )
    if message.role == "tool" and not message.tool_call_id:
        raise bad_request(
            f"{path}.tool_call_id is missing: name the call that this message answers", f"{path}.tool_call_id"
        )
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if part.type == "text" and part.text is None:
                where = f"{path}.content[{index}].text"
                raise bad_request(f"{where} is missing: a part of type text needs it", where)


def _with_single_prompt(body: bytes, prompt: list[Any]) -> bytes:
    """Return the body with the one text of the list as its prompt, so that cartridges know one form only."""
    if len(prompt) == 1 and isinstance(prompt[0], str):
        # Raw: the other fields stay as they came, numbers that fit no float among them.
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**fields, "prompt": prompt[0]})
    if prompt and all(isinstance(piece, str) for piece in prompt):
        raise bad_request(f"prompt has {len(prompt)} texts: send one prompt a request", "prompt", "unsupported_value")
    if not prompt:
        raise bad_request("prompt is an empty list: send text", "prompt")
    raise bad_request("prompt has token ids: send the text instead", "prompt", "unsupported_value")


# -- from bytes to structs, with errors that people can act on

_CHAT = msgspec.json.Decoder(ChatBody)
_COMPLETION = msgspec.json.Decoder(CompletionBody)

_AT = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_EXPECTED = re.compile(r"Expected (?P<wanted>.*?)(?:, got (?P<seen>.*))?\Z", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")
_PLAIN = (
    ("`", ""),
    (" | ", " or "),
    ("of length >= 1", "that is not empty"),
    ("Number out of range", "must have no number beyond 1.8e308"),
)
_JSON_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def _decode(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(
            f"the body is not UTF-8: byte 0x{body[error.start]:02x} at position {error.start}", None, "invalid_json"
        ) from None
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as error:
            # The first field at fault ends the reading: what follows may be no JSON at all.
            raise _field_error(str(error), msgspec.json.decode(body, type=msgspec.Raw)) from None
    except msgspec.DecodeError as error:
        what = "the body is empty" if not body.strip() else f"the body is not valid JSON: {error}"
        raise bad_request(f"{what}; send one JSON object", None, "invalid_json") from None
    except RecursionError:
        raise bad_request("the body is nested too deep: no request needs that", None, "invalid_json") from None


def _field_error(text: str, body: msgspec.Raw) -> ApiError:
    """Turn the decoder's words into field, what is expected, and the value seen, as it was written."""
    match = _AT.match(text)
    assert match is not None
    what, path = match["text"], (match["path"] or "").lstrip(".")
    missing = _MISSING.match(what)
    if missing is not None:
        param = f"{path}.{missing['field']}".lstrip(".")
        return bad_request(f"{param} is missing: it is required", param, "missing_required_parameter")
    expected = _EXPECTED.match(what)
    if not path:
        return bad_request(f"the body must be a JSON object: {_plain_words(what)}", None, "invalid_json")
    wanted = f"must be {_plain_words(expected['wanted'])}" if expected is not None else _plain_words(what)
    return bad_request(f"{path} {wanted}, not {_cut(_lookup(body, match['path']))}", path)


def _plain_words(text: str) -> str:
    for ours, plain in _PLAIN:
        text = text.replace(ours, plain)
    return re.sub(r"\b(str|int|float|bool)\b", lambda word: _JSON_WORDS[word[0]], text)


def _lookup(value: msgspec.Raw, path: str) -> str:
    """Follow a path as far as it is exact and return the JSON found there; of a map's unnamed value, that of the map.

    What lies beside the path is not decoded: it may have faults of its own.
    """
    for step in _STEP.finditer(path):
        try:
            if step["key"] is not None:
                value = msgspec.json.decode(value, type=dict[str, msgspec.Raw])[step["key"]]
            else:
                value = msgspec.json.decode(value, type=list[msgspec.Raw])[int(step["index"])]
        except (KeyError, IndexError, msgspec.DecodeError):
            break
    return bytes(value).decode()


def _show(value: Any) -> str:
    return _cut(msgspec.json.encode(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"
