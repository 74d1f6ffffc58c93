"""OpenAI's request bodies as far as this cartridge honours them, and the errors for what is wrong in them.

llama.cpp itself passes over much that it does not understand, so every field is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from capdag.cartridge import CartridgeError
from capdag.errors import AttributionClass

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
StopText = Annotated[str, msgspec.Meta(min_length=1)]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A part of a message's content; other kinds need another model."""

    text: str


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn of a chat. `content` may be absent where an assistant called tools."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class PlainText(msgspec.Struct, tag_field="type", tag="text"):
    """No format."""


class AnyJson(msgspec.Struct, tag_field="type", tag="json_object"):
    """Some JSON object."""


class NamedSchema(msgspec.Struct):
    """The inner object of OpenAI's json_schema format; its name, description and `strict` change nothing here."""

    schema: dict[str, Any]


class JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON of a schema."""

    json_schema: NamedSchema


class Sampling(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What chats and completions have in common. None: llama.cpp's own default."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, msgspec.Meta(gt=0, le=2)] | None = None
    logit_bias: dict[Annotated[str, msgspec.Meta(pattern=r"^\d{1,9}$")], float] | None = None
    seed: int | None = None
    stop: StopText | list[StopText] | None = None
    n: Positive | None = None
    max_tokens: Positive | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None


class ChatBody(Sampling, kw_only=True, omit_defaults=True):
    """The fields of `POST /v1/chat/completions` that are honoured."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    response_format: PlainText | AnyJson | JsonSchema | None = None

    prompt_field: ClassVar = "messages"


class CompletionBody(Sampling, kw_only=True, omit_defaults=True):
    """The fields of `POST /v1/completions` that are honoured. A prompt is text or a list of token ids; a list of
    texts, or of such lists, is several."""

    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None

    prompt_field: ClassVar = "prompt"


Body = TypeVar("Body", ChatBody, CompletionBody)


def refusal(message: str, param: str | None, **detail: object) -> CartridgeError:
    """Return the error for a body that cannot be honoured; `param` is the field at fault."""
    if param is not None:
        detail["param"] = param
    return CartridgeError("INVALID_REQUEST", message, AttributionClass.INPUT, detail)


def read_fields(data: bytes) -> dict[str, Any]:
    """Decode a body. A null is left out: it means the same in OpenAI's API. Raises CartridgeError INVALID_REQUEST."""
    try:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        fields = {name: _value(name, written) for name, written in raw.items()}
    except msgspec.ValidationError:
        raise refusal(f"the body must be a JSON object, not {data[:40]!r}", None) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise refusal(f"the body is not JSON: {error}", None) from None
    return {name: value for name, value in fields.items() if value is not None}


def _value(name: str, written: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(written)
    except msgspec.ValidationError as error:  # of JSON without a type there is only: a number out of range
        what = str(error).partition(" - at ")[0]
        raise refusal(f"{name}{_is(bytes(written).decode())}: {what}", name) from None


def check_fields(fields: Mapping[str, Any], kind: type[Body]) -> Body:
    """Check the fields that `kind` has; others are passed over. Raises CartridgeError INVALID_REQUEST naming the field,
    the value seen and what it must be."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at ")
        place = re.search(r"`\$\.?([^`]*)`$", at)
        field = place[1] if place else ""
        missing = re.search(r"missing required field `(\w+)`", what)
        if missing is not None:
            field = f"{field}.{missing[1]}".removeprefix(".")
        hint = next((text for pattern, text in _HINTS if pattern.search(field)), "")
        raise refusal(f"{field}{_seen(fields, field)}: {what}{hint}", field) from None


_HINTS = (
    (re.compile(r"\.content\[\d+\]\.type$"), "; this model reads parts of type text only"),
    (re.compile(r"\.role$"), "; roles are system, developer, user, assistant and tool"),
    (re.compile(r"^response_format\.type$"), "; types are text, json_object and json_schema"),
    (re.compile(r"^logit_bias$"), "; its keys are token ids, written as text"),
)

_LONGEST_SEEN = 60


def _seen(fields: Any, field: str) -> str:
    """Return ` is VALUE` for the value at msgspec's path, "" where there is none."""
    found = fields
    for name, number in re.findall(r"(\w+)|\[(\d+)\]", field):
        try:
            found = found[name or int(number)]
        except (LookupError, TypeError):
            return ""
    return _is(msgspec.json.encode(found).decode())


def _is(text: str) -> str:
    return f" is {text}" if len(text) <= _LONGEST_SEEN else f" is {text[:_LONGEST_SEEN]}…"
