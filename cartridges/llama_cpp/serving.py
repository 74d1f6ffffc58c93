"""The cartridge, and the caps of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from capdag.cartridge import Cartridge, Request
from capdag.models import GgufError, ModelFacts, read_facts, slug_of
from capdag.urn import CapUrn

from .engine import Engine
from .room import room_of
from .settings import Settings

NAME: Final = "llama-cpp"
VERSION: Final = "0.1.0"

_ABILITIES: Final = {"chat": ("json-schema", "logprobs"), "completion": ("logprobs",)}


def new_cartridge() -> Cartridge:
    """Return the cartridge without any model yet."""
    return Cartridge(NAME, version=VERSION, description="llama.cpp: chat and completion with one GGUF model a process")


def add_model(cartridge: Cartridge, settings: Settings) -> list[str]:
    """Make `cartridge` serve a model, which is loaded when the first request comes; returns the URNs of its caps.

    A model without a chat template is not offered for chat. One whose file is broken is offered all the same: its
    first request tells the reason.
    """
    path = Path(settings.path)
    facts = _facts(path)
    room = room_of(settings, facts)
    metadata = {
        "model": settings.model,
        "created": int(path.stat().st_mtime) if path.exists() else 0,
        "context_length": room.context,
        "owned_by": NAME,
    }
    engine = Engine(settings, room)
    caps = []
    if facts is None or facts.has_chat_template:
        caps.append(_add(cartridge, "chat", engine.chat, metadata))
    caps.append(_add(cartridge, "completion", engine.complete, metadata))
    cartridge.add_pool("slots", caps, settings.slots)
    return caps


def cap_urn(kind: str, model: str, context: int) -> str:
    """Return the canonical URN of a cap of `kind` chat or completion, with its ability tags: the rungs of the context
    ladder that fit in `context` tokens, and what the engine can do with the body's fields."""
    rungs = [f"ctx-{2**step}k" for step in range(1, 21) if 2**step * 1024 <= context]
    tags = "".join(f";{tag}" for tag in (*rungs, *_ABILITIES[kind]))
    urn = (
        f'cap:{kind};in="media:{kind}-request;enc=utf-8;fmt=json;record";model={slug_of(model)};'
        f'out="media:{kind}-event;list;record"{tags}'
    )
    return str(CapUrn.parse(urn))


def _facts(path: Path) -> ModelFacts | None:
    try:
        return read_facts(path)
    except GgufError:
        return None


def _add(cartridge: Cartridge, kind: str, answer: Callable[[bytes, Request], None], metadata: dict[str, Any]) -> str:
    def handle(request: Request) -> None:
        answer(request.main_input().read(), request)

    urn = cap_urn(kind, metadata["model"], metadata["context_length"])
    events = {
        "media_urn": f"media:{kind}-event;list;record",
        "name": "events",
        "output_description": "text, finish and usage, as they come",
        "is_sequence": True,
    }
    title = f"{kind.capitalize()} with {metadata['model']}"
    cartridge.add_cap(urn, handle, title=title, aliases=[kind], outputs=[events], metadata=metadata)
    return urn
