"""Chunks that the real engine does not give at will: errors after the beginning, an end too early, reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capdag.cartridge import CartridgeError
from cartridges.llama_cpp.answer import Answer
from cartridges.llama_cpp.request import EngineRequest

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def answer(n: int = 1) -> Answer:
    return Answer(EngineRequest(b"{}", 1, n, 0, "messages", ()))


def read(into: Answer, **chunk: Any) -> list[Any]:
    return list(into.read(json.dumps(chunk).encode()))


def delta(index: int = 0, finish: str | None = None, **parts: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": parts, "finish_reason": finish}]}


def test_reasoning_is_apart_from_text() -> None:
    into = answer()
    assert read(into, **delta(role="assistant", content=None)) == []
    assert read(into, **delta(reasoning_content="hm")) == [{"reasoning": "hm"}]
    assert read(into, **delta(content="so")) == [{"text": "so"}]
    assert read(into, **delta(finish="stop")) == [{"finish": "stop"}]
    assert read(into, choices=[], usage=USAGE) == []
    assert into.close() == {"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}}


def test_an_error_after_the_beginning_is_the_engines() -> None:
    into = answer()
    read(into, **delta(content="a"))
    with pytest.raises(CartridgeError, match=r"llama\.cpp failed: no room") as caught:
        read(into, error={"code": 400, "message": "no room", "type": "invalid_request_error"})
    assert (caught.value.code, caught.value.attribution) == ("HANDLER_ERROR", "internal")


def test_an_error_of_the_engine_before_the_beginning() -> None:
    with pytest.raises(CartridgeError) as caught:
        read(answer(), error={"code": 500, "message": "no room", "type": "server_error"})
    assert caught.value.code == "HANDLER_ERROR"


def test_an_answer_that_stops_without_finish() -> None:
    into = answer(n=2)
    for chunk in (delta(content="a"), delta(finish="stop"), {"choices": [], "usage": USAGE}):
        read(into, **chunk)
    with pytest.raises(CartridgeError, match="before 1 of the answers"):
        into.close()
