"""The cartridge as a process that speaks frames: what discovery says of it, what it answers, how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
import psutil
import pytest

from capdag.cartridge.spec import Record
from capdag.errors import ConfigError
from capdag.urn import CapUrn
from capdag.wire import (
    RESPONSE,
    TERMINAL_TYPES,
    USER_CANCEL,
    CartridgeHello,
    Failure,
    FrameType,
    FrameView,
    cancel_frame,
    credit_frame,
    failure_of,
    read_log,
)
from cartridges.llama_cpp import SPEC, record_of
from tests.cartridge.driver import Driver, cartridge, whole_request
from tests.tiny_gguf import ALPHABET, make_alphabet

CHAT = 'cap:chat;in="media:chat-request;enc=utf-8;fmt=json;record";model={};out="media:chat-event;list;record"'


class Conversation:
    """Requests to one running cartridge."""

    def __init__(self, driver: Driver, record: Record) -> None:
        self.driver = driver
        self.record = record
        self.hello: CartridgeHello = driver.attach()

    def ask(self, rid: int, kind: str = "chat", **fields: Any) -> None:
        """Send a request; a chat says hi."""
        cap = next(cap for cap in self.record.caps if f"cap:{kind};" in cap["urn"])
        if kind == "chat":
            fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
        media = cap["args"][0]["media_urn"]
        self.driver.send(*whole_request(rid, cap["urn"], media, json.dumps(fields).encode()))

    def events(self, rid: int) -> list[Mapping[str, Any]]:
        """Return the events that have come for a request."""
        return [cbor2.loads(view.frame().payload) for view in self.driver.of(rid, FrameType.CHUNK)]

    def terminal(self, rid: int) -> FrameView:
        """Wait for a request's terminal; it may have come while another's was waited for."""
        seen = [view for view in self.driver.of(rid) if view.type in TERMINAL_TYPES]
        return seen[0] if seen else self.driver.terminal(rid)

    def text(self, rid: int) -> str:
        """Wait for a request's success and return its text."""
        assert self.terminal(rid).type == FrameType.END, self.failure(rid)
        return "".join(event.get("text", "") for event in self.events(rid))

    def failure(self, rid: int) -> Failure:
        """Wait for a request's ERR."""
        terminal = self.terminal(rid)
        assert terminal.type == FrameType.ERR
        return failure_of(terminal.frame().meta)


@contextmanager
def conversation(path: Path, **settings: Any) -> Iterator[Conversation]:
    record = record_of("llama-cpp/m", {"model": "Alpha Bet", "path": str(path), **settings})
    with cartridge(SPEC.command, env={"CAPDAG_CONFIG": json.dumps(record.settings)}) as driver:
        yield Conversation(driver, record)


def no_settings(_model: str) -> dict[str, Any]:
    return {}


def test_settings_of_a_model_are_in_its_caps(alphabet_model: Path) -> None:
    (record,) = SPEC.records(
        alphabet_model.parent, lambda model: {"context": 512} if model == alphabet_model.stem else {}
    )
    assert record.settings["context"] == 512
    assert record.caps[0]["metadata"]["context_length"] == 512
    with pytest.raises(ConfigError, match="context is 1"):
        SPEC.records(alphabet_model.parent, lambda _: {"context": 1})


def test_records_of_a_folder(alphabet_model: Path, tmp_path: Path) -> None:
    shutil.copy(alphabet_model, tmp_path / "Alpha Bet.gguf")
    make_alphabet(tmp_path / "base.gguf", chat=False)
    (tmp_path / "broken.gguf").write_text("no model")
    alpha, base, broken = SPEC.records(tmp_path, no_settings)
    assert (alpha.id, base.id, broken.id) == ("llama-cpp/alpha-bet", "llama-cpp/base", "llama-cpp/broken")
    assert alpha.settings == {"model": "Alpha Bet", "path": str(tmp_path / "Alpha Bet.gguf")}
    assert [cap["urn"].split(";")[0] for cap in alpha.caps] == ["cap:chat", "cap:completion"]
    assert [cap["urn"].split(";")[0] for cap in base.caps] == ["cap:completion"]
    assert len(broken.caps) == 2
    metadata = alpha.caps[0]["metadata"]
    assert (metadata["model"], metadata["context_length"], metadata["owned_by"]) == ("Alpha Bet", 2048, "llama-cpp")
    assert metadata["created"] == int((tmp_path / "Alpha Bet.gguf").stat().st_mtime)


def test_a_name_that_is_not_utf_8_makes_no_record(alphabet_model: Path, tmp_path: Path) -> None:
    shutil.copy(alphabet_model, tmp_path / "good.gguf")
    shutil.copy(alphabet_model, os.fsencode(tmp_path) + b"/bad\xff.gguf")
    assert [record.id for record in SPEC.records(tmp_path, no_settings)] == ["llama-cpp/good"]


def test_caps_serve_what_the_gateway_asks_for(alphabet_model: Path) -> None:
    cap = CapUrn.parse(record_of("x", {"model": "Alpha Bet", "path": str(alphabet_model)}).caps[0]["urn"])
    assert cap.is_dispatchable(CapUrn.parse(CHAT.format("alpha-bet")))
    assert cap.is_dispatchable(CapUrn.parse(CHAT.format("alpha-bet") + ";ctx-2k"))
    assert not cap.is_dispatchable(CapUrn.parse(CHAT.format("alpha-bet") + ";ctx-4k"))
    assert not cap.is_dispatchable(CapUrn.parse(CHAT.format("other")))


def test_two_models_with_one_slug(alphabet_model: Path, tmp_path: Path) -> None:
    for name in ("a b.gguf", "a-b.gguf"):
        shutil.copy(alphabet_model, tmp_path / name)
    with pytest.raises(ConfigError, match="would both be served as 'a-b'"):
        SPEC.records(tmp_path, no_settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"slots": 0}, "slots is 0: .*>= 1"),
        ({"context": "big"}, "context is 'big'"),
        ({"contxt": 1}, "unknown field `contxt`.* Known settings: model, path, context"),
        ({"model": ""}, "model is ''"),
    ],
)
def test_wrong_settings(alphabet_model: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        record_of("x", {"model": "m", "path": str(alphabet_model), **settings})
    assert re.search(says, str(caught.value)), caught.value


def test_it_does_not_start_without_a_model() -> None:
    with cartridge(SPEC.command, env={"CAPDAG_CONFIG": "{}"}) as driver:
        assert driver.exit_code() == 2
        assert "llama-cpp settings: Object missing required field `model`" in driver.stderr()


def test_discovery_does_not_import_the_engine(alphabet_model: Path) -> None:
    code = (
        "import sys, pathlib; from cartridges.llama_cpp import SPEC; "
        f"SPEC.records(pathlib.Path({str(alphabet_model.parent)!r}), lambda _: {{}}); "
        "sys.exit('xllamacpp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_first_light(alphabet_model: Path) -> None:
    with conversation(alphabet_model) as talk:
        caps = [cap["urn"] for group in json.loads(talk.hello.manifest)["cap_groups"] for cap in group["caps"]]
        assert caps[1:] == [cap["urn"] for cap in talk.record.caps]
        assert not talk.driver.of(1)  # nothing is loaded before the first request
        talk.ask(1)
        assert talk.text(1) == ALPHABET
        assert talk.events(1)[-2] == {"finish": "stop"}
        assert talk.events(1)[-1]["usage"]["completion_tokens"] == 27
        logs = [read_log(view.frame().meta) for view in talk.driver.of(1, FrameType.LOG)]
        assert [(log.level, log.progress) for log in logs] == [("progress", 0.0), ("progress", 1.0)]
        talk.ask(2, "completion", prompt="abc", max_tokens=5)
        assert talk.text(2) == "defgh"
        assert not talk.driver.of(2, FrameType.LOG)
        assert talk.driver.close() == 0
        assert talk.driver.stderr() == ""


def test_eight_at_once(alphabet_model: Path) -> None:
    with conversation(alphabet_model) as talk:
        for number in range(8):
            talk.ask(10 + number, "completion", prompt=ALPHABET[number], max_tokens=20)
        for number in range(8):
            assert talk.text(10 + number) == (ALPHABET + "\0")[number + 1 : number + 21].rstrip("\0")


def test_nothing_listens_and_nothing_is_written_to_stdout(alphabet_model: Path) -> None:
    with conversation(alphabet_model) as talk:
        talk.ask(1)
        talk.text(1)
        process = psutil.Process(talk.driver.process.pid)
        assert process.net_connections("inet") == []
        # The engine's own server: the path of its socket has gone, so nobody can connect to it.
        paths = [connection.laddr for connection in process.net_connections("unix") if connection.laddr]
        assert [path for path in paths if Path(path).exists()] == []
        assert process.children(recursive=True) == []
        # A stray byte on stdout would have been taken for the length of a frame, and failed before this.
        assert talk.driver.close() == 0


def test_errors_reach_the_caller(alphabet_model: Path) -> None:
    with conversation(alphabet_model, context=256) as talk:
        talk.ask(1, messages=[{"role": "user", "content": "x" * 300}])
        failure = talk.failure(1)
        assert (failure.code, failure.attribution) == ("CONTEXT_LENGTH_EXCEEDED", "input")
        assert failure.detail["param"] == "messages"
        assert failure.detail["limit"] == 256
        assert failure.detail["seen"] > 300
        assert not talk.driver.of(1, FrameType.STREAM_START)
        talk.ask(2, tools=[{"type": "function"}])
        assert (talk.failure(2).code, talk.failure(2).detail["param"]) == ("INVALID_REQUEST", "tools")


def test_a_broken_model_tells_its_reason_and_is_tried_again(alphabet_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(alphabet_model.read_bytes()[:100_000])
    with conversation(path) as talk:
        talk.ask(1)
        failure = talk.failure(1)
        assert (failure.code, failure.attribution) == ("MODEL_LOAD_FAILED", "environment")
        assert "it was cut short" in failure.message
        shutil.copy(alphabet_model, path)
        talk.ask(2)
        assert talk.text(2) == ALPHABET


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_alphabet(tmp_path_factory.mktemp("long") / "long.gguf", context=65_536)


def test_too_little_memory(long_model: Path) -> None:
    with conversation(long_model, context=65_536, slots=64) as talk:
        psutil.Process(talk.driver.process.pid).rlimit(psutil.RLIMIT_AS, (2**31, 2**31))
        talk.ask(1)
        failure = talk.failure(1)
        assert failure.code == "MODEL_LOAD_FAILED"
        assert "not enough memory for 64 slots of 65,536 tokens: lower `slots` or `context`" in failure.message


def test_cancel_in_each_phase(long_model: Path) -> None:
    with conversation(long_model, context=65_536, slots=1) as talk:
        driver = talk.driver
        talk.ask(1, messages=[{"role": "user", "content": "x" * 60_000}])
        driver.next(lambda view: view.id == 1 and view.type == FrameType.STREAM_START)
        talk.ask(2)  # waits for a slot
        driver.send(cancel_frame(2, USER_CANCEL))
        assert talk.failure(2).code == "CANCELLED"
        assert not driver.of(1, FrameType.ERR)
        driver.send(cancel_frame(1, USER_CANCEL))
        assert talk.failure(1).code == "CANCELLED"
        assert not driver.of(1, FrameType.CHUNK)
        talk.ask(3, ignore_eos=True)  # never gets more credit than the first
        driver.next(lambda view: view.id == 3 and view.type == FrameType.CHUNK)
        driver.send(cancel_frame(3, USER_CANCEL))
        assert talk.failure(3).code == "CANCELLED"
        talk.ask(4)
        assert talk.text(4) == ALPHABET


def test_an_answer_goes_on_under_credit(alphabet_model: Path) -> None:
    with conversation(alphabet_model) as talk:
        driver = talk.driver
        talk.ask(1, ignore_eos=True, max_tokens=200)
        stream = driver.next(lambda view: view.type == FrameType.STREAM_START).frame().stream_id
        for _ in range(200):
            driver.next(lambda view: view.type == FrameType.CHUNK)
            driver.send(credit_frame(1, stream, 1, RESPONSE))
        assert talk.text(1) == (ALPHABET * 8)[:200]


def test_stdin_ends_in_mid_answer(long_model: Path) -> None:
    with conversation(long_model, context=65_536, slots=1) as talk:
        talk.ask(1, ignore_eos=True)
        talk.driver.next(lambda view: view.type == FrameType.CHUNK)
        assert talk.driver.close() == 0  # not the SIGABRT of an interpreter that ends around a running engine
