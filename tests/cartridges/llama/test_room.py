"""What cannot fit is refused before the engine sees it, with numbers; what might fit is left to the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capdag.cartridge import CartridgeError
from capdag.models import ModelFacts, read_facts
from cartridges.llama_cpp.engine import Engine
from cartridges.llama_cpp.request import read_chat, read_completion
from cartridges.llama_cpp.room import Room, room_of
from cartridges.llama_cpp.settings import Settings

from .asker import Asker

ROOM = Room(slots=2, context=100, longest_token=10)
FULL = "é" * 500
SETTINGS = Settings(model="m", path="m.gguf", context=4096, slots=3)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def ask(**fields: Any) -> None:
    read = read_chat if "messages" in fields else read_completion
    read(json.dumps(fields).encode(), ROOM)


CALL = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"arguments": "x" * 1001}}]}


@pytest.mark.parametrize(
    ("messages", "seen", "limit"),
    [
        ([user(FULL + "x")], 1001, 1000),
        ([user("x" * 500), user("y" * 501)], 1001, 1000),
        ([user([{"type": "text", "text": FULL}, {"type": "text", "text": "x"}])], 1001, 1000),
        ([user("hi"), CALL], 1000 + len('[{"id":"1","function":{"arguments":""}}]') + 3, 1000),
        ([{"role": "tool", "content": "", "tool_call_id": "x" * 1001}], 1001, 1000),
        ([user("")] * 101, 101, 100),
    ],
    ids=["one", "sum", "parts", "calls", "call id", "many"],
)
def test_messages_that_cannot_fit(messages: list[Any], seen: int, limit: int) -> None:
    with pytest.raises(CartridgeError) as caught:
        ask(messages=messages)
    assert (caught.value.code, caught.value.attribution) == ("CONTEXT_LENGTH_EXCEEDED", "input")
    assert caught.value.detail == {"param": "messages", "limit": limit, "seen": seen}
    for number in (f"{seen:,}", "100 tokens", f"at most {limit:,}"):
        assert number in caught.value.message


@pytest.mark.parametrize(
    ("prompt", "seen", "limit"),
    [
        (FULL + "x", 1001, 1000),
        (["a", FULL + "x"], 1001, 1000),
        ([1] * 101, 101, 100),
        ([[1], [1] * 101], 101, 100),
        ([FULL, FULL, "x"], 201, 200),
        ([[1] * 100, [1] * 100, [1]], 201, 200),
        (["x"] * 201, 201, 200),
    ],
    ids=["text", "second text", "ids", "second ids", "texts together", "ids together", "many"],
)
def test_prompts_that_cannot_fit(prompt: Any, seen: int, limit: int) -> None:
    with pytest.raises(CartridgeError) as caught:
        ask(prompt=prompt)
    assert caught.value.code == "CONTEXT_LENGTH_EXCEEDED"
    assert caught.value.detail == {"param": "prompt", "limit": limit, "seen": seen}


def test_what_might_fit_is_for_the_engine_to_count() -> None:
    ask(messages=[user(FULL)])
    ask(messages=[user("")] * 100)
    for prompt in (FULL, [FULL, FULL], [1] * 100, [[1] * 100] * 2, ["x"] * 200):
        ask(prompt=prompt)


@pytest.mark.parametrize(
    ("trained", "longest", "expected"),
    [(8192, 162, (3, 4096, 162)), (2048, 0, (3, 2048, 1024)), (0, 60_000_000, (3, 4096, 1024))],
)
def test_the_room_of_a_model(trained: int, longest: int, expected: tuple[int, int, int]) -> None:
    facts = ModelFacts("llama", "", trained, "", True, longest)
    assert room_of(SETTINGS, facts) == expected


@pytest.mark.parametrize(
    ("context", "longest", "most"),
    [(8_192, 100, 819_200), (8_192, 200, 1_000_000), (131_072, 200, 2_097_152), (131_072, 8, 1_048_576)],
)
def test_a_long_text_must_be_a_dense_one(context: int, longest: int, most: int) -> None:
    room = Room(1, context, longest)
    assert room.check_text("prompt", ["x" * most]) == -(-most // longest)
    with pytest.raises(CartridgeError) as caught:
        room.check_text("prompt", ["x" * most, "x"])
    assert caught.value.detail == {"param": "prompt", "limit": most, "seen": most + 1}


def test_an_unreadable_model_has_the_room_of_its_settings() -> None:
    assert room_of(SETTINGS, None) == (3, 4096, 1024)


def test_the_engine_is_not_even_loaded_for_it(alphabet_model: Path) -> None:
    settings = Settings(model="m", path=str(alphabet_model), context=512, slots=2)
    engine = Engine(settings, room_of(settings, read_facts(alphabet_model)))
    asker = Asker()
    for ask_long in (asker.chat, asker.complete):
        with pytest.raises(CartridgeError, match=r"30,000,000 bytes.*512 tokens.*at most 6,656 bytes"):
            ask_long(engine, "x" * 30_000_000)
    assert engine._server is None
    assert not asker.opened.is_set()
