"""Cancelling in every phase: the caller is released, the engine stops, neighbours see nothing of it.

The model's context is so large that an engine which went on would need far longer than any wait here: a thousand times
the tokens that the tests read.
"""

from __future__ import annotations

import time
from threading import Event

import psutil
import pytest

from cartridges.llama_cpp.engine import Engine
from cartridges.llama_cpp.settings import Settings
from tests.tiny_gguf import ALPHABET, make_alphabet

from .asker import PATIENCE, Asker, CancelledError

CONTEXT = 65_536
LONG_PROMPT = "x" * (CONTEXT - 1_000)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = make_alphabet(tmp_path_factory.mktemp("long") / "long.gguf", context=CONTEXT)
    engine = Engine(Settings(model="long", path=str(path), context=CONTEXT, slots=2))
    Asker().chat(engine, max_tokens=1)
    return engine


def endless(engine: Engine, watch: object = lambda asker, what: None) -> Asker:
    """Start an answer that ends with the context only, and wait until it is being written."""
    begun = Event()

    def tell(asker: Asker, what: str) -> None:
        watch(asker, what)
        if what == "item":
            begun.set()

    asker = Asker(tell)
    asker.start(lambda: asker.chat(engine, ignore_eos=True))
    assert begun.wait(PATIENCE)
    return asker


def prompting(engine: Engine) -> Asker:
    """Start a request and wait until its prompt is being read."""
    asker = Asker()
    asker.start(lambda: asker.chat(engine, LONG_PROMPT))
    assert asker.opened.wait(PATIENCE)
    return asker


def assert_cancelled(asker: Asker) -> None:
    with pytest.raises(CancelledError):
        asker.wait()


def assert_serves(engine: Engine) -> None:
    """The engine has both slots free, and its place for a prompt."""
    assert Asker().chat(engine, n=2).text(1) == ALPHABET


def test_in_the_prompt(engine: Engine) -> None:
    asker = prompting(engine)
    asker.cancel()
    assert_cancelled(asker)
    assert asker.items == []
    assert_serves(engine)


def test_while_text_is_written(engine: Engine) -> None:
    def cancel_at_five(asker: Asker, what: str) -> None:
        if len(asker.items) == 5:
            asker.cancel()

    asker = endless(engine, cancel_at_five)
    assert_cancelled(asker)
    assert asker.text() == ALPHABET[:5]
    assert_serves(engine)


def test_while_the_reader_does_not_read(engine: Engine) -> None:
    released = Event()

    def stall(asker: Asker, what: str) -> None:
        if what == "item":
            assert released.wait(PATIENCE)

    asker = endless(engine, lambda asker, what: None)
    asker._watch = stall
    asker.cancel()
    released.set()
    assert_cancelled(asker)
    assert_serves(engine)


def test_while_another_prompt_is_read(engine: Engine) -> None:
    first = prompting(engine)
    second = Asker()
    second.start(lambda: second.chat(engine))
    second.cancel()
    assert_cancelled(second)
    assert not second.opened.is_set()
    assert not first.ended.is_set()
    first.cancel()
    assert_cancelled(first)
    assert_serves(engine)


def test_while_no_slot_is_free(engine: Engine) -> None:
    first = endless(engine)
    second = Asker()
    second.start(lambda: second.chat(engine, n=2))
    second.cancel()
    assert_cancelled(second)
    assert not first.ended.is_set()
    first.cancel()
    assert_cancelled(first)
    assert_serves(engine)


def test_before_it_is_asked(engine: Engine) -> None:
    asker = Asker()
    asker.cancel()
    with pytest.raises(CancelledError):
        asker.chat(engine)
    assert not asker.opened.is_set()
    assert_serves(engine)


def test_a_neighbour_is_not_disturbed(engine: Engine) -> None:
    first = endless(engine)
    neighbour = Asker()
    neighbour.start(lambda: neighbour.chat(engine, ignore_eos=True, max_tokens=300))
    assert neighbour.opened.wait(PATIENCE)
    first.cancel()
    assert_cancelled(first)
    assert neighbour.wait().text() == (ALPHABET * 12)[:300]


@pytest.mark.parametrize("begin", [prompting, endless])
def test_the_processor_comes_to_rest(engine: Engine, begin: object) -> None:
    asker = begin(engine)
    asker.cancel()
    assert_cancelled(asker)
    deadline = time.monotonic() + PATIENCE
    while share_of_a_core(0.2) > 0.3:
        assert time.monotonic() < deadline, "the engine computes on"


def share_of_a_core(seconds: float) -> float:
    process = psutil.Process()
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / seconds


def test_what_the_reader_raises_comes_back(engine: Engine) -> None:
    def fail(asker: Asker, what: str) -> None:
        if what == "item":
            raise RuntimeError("the pipe is gone")

    with pytest.raises(RuntimeError, match="the pipe is gone"):
        Asker(fail).chat(engine, ignore_eos=True)
    assert_serves(engine)


def test_prompts_are_read_in_order_of_arrival(engine: Engine) -> None:
    order: list[str] = []
    first = prompting(engine)
    others = []
    for name in ("second", "third"):
        other = Asker(lambda _, what, name=name: order.append(name) if what == "open" else None)
        other.start(lambda other=other: other.chat(engine))
        others.append(other)
        while engine._slots.waiting < len(others):
            time.sleep(0.001)
    first.cancel()
    for other in others:
        assert other.wait().text() == ALPHABET
    assert order == ["second", "third"]
    assert_cancelled(first)


def test_progress_of_a_long_prompt_is_told(engine: Engine) -> None:
    told = Event()
    asker = Asker(lambda _, what: told.set() if what == "progress" else None)
    asker.start(lambda: asker.chat(engine, LONG_PROMPT))
    assert told.wait(PATIENCE)
    asker.cancel()
    assert_cancelled(asker)
    fraction, message = asker.reports[0]
    assert 0 < fraction < 1
    assert message.startswith("reading the prompt: ")
