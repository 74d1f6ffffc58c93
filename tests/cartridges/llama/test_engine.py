"""The real engine with the alphabet model: what is answered, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from capdag.cartridge import CartridgeError
from cartridges.llama_cpp.engine import Engine
from cartridges.llama_cpp.settings import Settings
from tests.tiny_gguf import ALPHABET, ALPHABET_TOKENS

from .asker import Asker

SLOTS = 4


@pytest.fixture(scope="module")
def engine(alphabet_model: Path) -> Engine:
    engine = Engine(Settings(model="alphabet", path=str(alphabet_model), context=512, slots=SLOTS))
    Asker().chat(engine, max_tokens=1)  # loaded before a test begins, so that its descriptors are nobody's leak
    return engine


def test_chat(engine: Engine) -> None:
    asker = Asker().chat(engine)
    assert asker.opened.is_set()
    assert asker.text() == ALPHABET
    assert asker.items[-2] == {"finish": "stop"}
    prompt = asker.usage["prompt_tokens"]
    assert asker.usage["completion_tokens"] == ALPHABET_TOKENS
    assert asker.usage["total_tokens"] == prompt + ALPHABET_TOKENS
    assert asker.items[-1]["timings"]["predicted_n"] == ALPHABET_TOKENS


def test_completion(engine: Engine) -> None:
    asker = Asker().complete(engine, "abc", max_tokens=5)
    assert (asker.text(), asker.finishes(), asker.usage["completion_tokens"]) == ("defgh", {0: "length"}, 5)


def test_completion_without_max_tokens_gets_sixteen(engine: Engine) -> None:
    asker = Asker().complete(engine, "abc")
    assert (asker.text(), asker.finishes()) == (ALPHABET[3:19], {0: "length"})


def test_completion_of_tokens_and_of_several_prompts(engine: Engine) -> None:
    assert Asker().complete(engine, list(b"abc"), max_tokens=2).text() == "de"
    asker = Asker().complete(engine, ["abc", "x"], max_tokens=2, n=2)
    assert [asker.text(choice) for choice in range(4)] == ["de", "de", "yz", "yz"]
    assert asker.finishes() == dict.fromkeys(range(4), "length")
    assert asker.usage["prompt_tokens"] == 4
    assert asker.usage["completion_tokens"] == 8


def test_more_prompts_than_slots(engine: Engine) -> None:
    prompts = [ALPHABET[: 1 + number] for number in range(3 * SLOTS)]
    asker = Asker().complete(engine, prompts, max_tokens=1)
    assert [asker.text(choice) for choice in range(len(prompts))] == list(ALPHABET[1 : 1 + len(prompts)])


def test_n(engine: Engine) -> None:
    asker = Asker().chat(engine, n=SLOTS)
    assert [asker.text(choice) for choice in range(SLOTS)] == [ALPHABET] * SLOTS
    assert asker.usage["completion_tokens"] == SLOTS * ALPHABET_TOKENS
    assert asker.usage["prompt_tokens"] < 2 * Asker().chat(engine).usage["prompt_tokens"]


def test_all_slots_at_once_and_more(engine: Engine) -> None:
    starts = ALPHABET[: 2 * SLOTS]
    askers = [Asker() for _ in starts]
    for asker, letter in zip(askers, starts, strict=True):
        asker.start(lambda asker=asker, letter=letter: asker.complete(engine, letter, max_tokens=99))
    assert [asker.wait().text() for asker in askers] == [ALPHABET[1 + at :] for at in range(len(starts))]


@pytest.mark.parametrize(("stop", "text"), [("f", "abcde"), (["x", "def"], "abc"), (["nothing like it"], ALPHABET)])
def test_stop(engine: Engine, stop: str | list[str], text: str) -> None:
    asker = Asker().chat(engine, stop=stop)
    assert (asker.text(), asker.finishes()) == (text, {0: "stop"})


def test_ignore_eos_runs_to_the_end_of_the_context(engine: Engine) -> None:
    asker = Asker().chat(engine, ignore_eos=True)
    assert asker.finishes() == {0: "length"}
    assert asker.text() == (ALPHABET * 20)[: len(asker.text())]
    assert asker.usage["total_tokens"] == 512


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}]
)
def test_max_tokens(engine: Engine, fields: dict[str, int]) -> None:
    assert Asker().chat(engine, **fields).text() == "abc"


@pytest.mark.parametrize("seed", [0, 7, -1, 2**32 - 1, 2**63])
def test_seed_repeats(engine: Engine, seed: int) -> None:
    # With every letter as likely as the next, only the seed can make two answers the same.
    loose = {"seed": seed, "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "ignore_eos": True, "max_tokens": 40}
    texts = {Asker().chat(engine, cache_prompt=False, **loose).text() for _ in range(2)}
    assert len(texts) == 1
    assert texts != {Asker().chat(engine, cache_prompt=False, **{**loose, "seed": seed + 1}).text()}


def test_json_schema(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "letters": {"type": "string", "maxLength": 3}},
        "required": ["ok", "letters"],
        "additionalProperties": False,
    }
    answer = json.loads(Asker().chat(engine, **schema_format(schema)).text())
    assert set(answer) == {"ok", "letters"}
    assert isinstance(answer["ok"], bool)
    assert len(answer["letters"]) <= 3


def test_logprobs(engine: Engine) -> None:
    plain = Asker().chat(engine, max_tokens=2, logprobs=True).items[0]["logprobs"]["content"]
    assert [(entry["token"], entry["top_logprobs"]) for entry in plain] == [("a", [])]
    two = Asker().complete(engine, "a", max_tokens=1, logprobs=2).items[0]["logprobs"]["content"][0]
    assert [other["token"] for other in two["top_logprobs"]] == ["b", "a"]
    assert sum(math.exp(other["logprob"]) for other in two["top_logprobs"]) == pytest.approx(1, abs=0.01)


def test_content_parts_and_the_developer_role(engine: Engine) -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    whole = {"role": "user", "content": "hi"}
    counts = []
    for first, second in (("developer", parts), ("system", whole)):
        asker = Asker()
        body = {"messages": [{"role": first, "content": "be brief"}, second], "cache_prompt": False}
        engine.chat(json.dumps(body).encode(), asker)
        counts.append(asker.usage["prompt_tokens"])
    assert counts[0] == counts[1]


def test_turns_with_tool_calls_are_read(engine: Engine) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    asker = Asker()
    engine.chat(json.dumps({"messages": turns}).encode(), asker)
    assert asker.text() == ALPHABET


def test_unknown_fields_are_ignored_and_named(engine: Engine) -> None:
    asker = Asker().chat(engine, frobnicate=1, user="me", tools=[], tool_choice="auto", stream=True, model="other")
    assert asker.text() == ALPHABET
    assert asker.logs == [("info", "ignored, not known here: frobnicate")]


@pytest.mark.parametrize(("ask", "field"), [(Asker.chat, "messages"), (Asker.complete, "prompt")])
def test_too_long(engine: Engine, ask: object, field: str) -> None:
    asker = Asker()
    with pytest.raises(CartridgeError, match=r"6\d\d tokens.*512") as caught:
        ask(asker, engine, "x" * 600)
    assert (caught.value.code, caught.value.attribution) == ("CONTEXT_LENGTH_EXCEEDED", "input")
    assert caught.value.detail["param"] == field
    assert caught.value.detail["limit"] == 512
    assert caught.value.detail["seen"] >= 600
    assert not asker.opened.is_set()


def schema_format(schema: dict[str, object]) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (schema_format({"$ref": "#/nowhere"}), "response_format"),
        (schema_format({"type": "array", "minItems": 10**9}), "response_format"),
        ({"n": SLOTS + 1}, "n"),
    ],
)
def test_what_the_engine_refuses_opens_no_answer(engine: Engine, body: dict[str, object], param: str) -> None:
    asker = Asker()
    with pytest.raises(CartridgeError) as caught:
        asker.chat(engine, **body)
    assert (caught.value.code, caught.value.detail["param"]) == ("INVALID_REQUEST", param)
    assert not asker.opened.is_set()


def test_tokens_that_do_not_exist(engine: Engine) -> None:
    with pytest.raises(CartridgeError, match="invalid tokens") as caught:
        Asker().complete(engine, [9_999_999])
    assert (caught.value.code, caught.value.detail["param"]) == ("INVALID_REQUEST", "prompt")
