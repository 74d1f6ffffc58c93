"""A real model through the command and an unmodified OpenAI client, and what happens when something dies."""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.cli.servers import Server, eventually, serving
from tests.leaks import alive
from tests.tiny_gguf import ALPHABET, ALPHABET_TOKENS, make_alphabet

CONTEXT = 8192
"""Tokens of one request: with `ignore_eos` an answer goes on for several seconds."""

MESSAGES: Any = [{"role": "user", "content": "the alphabet, please"}]
ENDLESS: Any = {"ignore_eos": True, "max_tokens": CONTEXT}
NANNY = shlex.join([sys.executable, str(Path(__file__).with_name("nanny.py"))])

both_shapes = pytest.mark.parametrize("shape", [[], ["--split"]], ids=["one-process", "split"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the alphabet model under a name with capitals."""
    folder = tmp_path_factory.mktemp("weights")
    make_alphabet(folder / "Alphabet.gguf", context=CONTEXT)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration file that gives each request the model's whole context."""
    file = tmp_path / "capdag.toml"
    file.write_text(f"[models]\ncontext = {CONTEXT}\n[gateway]\nwrite_deadline = 2\n")
    return file


def _serve(tmp_path: Path, models: Path, config: Path, *options: str) -> Any:
    return serving(tmp_path / "run", "--config", str(config), "--port", "0", "--models", str(models), *options)


def _client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


def _text(client: openai.OpenAI, **options: Any) -> str:
    stream = client.chat.completions.create(model="Alphabet", messages=MESSAGES, stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def _endless(client: openai.OpenAI) -> Iterator[str]:
    """Begin an answer that goes on for seconds; gives its pieces."""
    stream = client.chat.completions.create(model="Alphabet", messages=MESSAGES, stream=True, extra_body=ENDLESS)
    return (chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def _engine(server: Server) -> psutil.Process:
    return server.find("cartridges.llama_cpp")


def _is_idle(process: psutil.Process) -> bool:
    before = sum(process.cpu_times()[:2])
    time.sleep(0.2)
    return sum(process.cpu_times()[:2]) - before <= 0.02


@both_shapes
def test_an_openai_client_gets_the_alphabet(tmp_path: Path, models: Path, config: Path, shape: list[str]) -> None:
    with _serve(tmp_path, models, config, *shape) as server, _client(server) as client:
        assert [model.id for model in client.models.list()] == ["Alphabet"]
        whole = client.chat.completions.create(model="Alphabet", messages=MESSAGES)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (ALPHABET, "stop")
        assert whole.usage is not None
        assert whole.usage.completion_tokens == ALPHABET_TOKENS
        assert _text(client) == ALPHABET
        completion = client.completions.create(model="Alphabet", prompt="abc", max_tokens=5)
        assert completion.choices[0].text == "defgh"
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: _text(client), range(8))) == [ALPHABET] * 8
        assert _engine(server).pid


@both_shapes
def test_a_cartridge_killed_in_mid_stream_is_told_and_the_next_request_served(
    tmp_path: Path, models: Path, config: Path, shape: list[str]
) -> None:
    with _serve(tmp_path, models, config, *shape) as server, _client(server) as client:
        pieces = _endless(client)
        assert next(piece for piece in pieces if piece) == "a"
        killed = _engine(server)
        killed.kill()
        with pytest.raises(openai.APIError) as caught:
            list(pieces)
        assert caught.value.code == "cartridge_died"
        assert _text(client) == ALPHABET
        assert _engine(server).pid != killed.pid


def test_what_a_leaving_client_asked_for_stops_and_its_neighbour_goes_on(
    tmp_path: Path, models: Path, config: Path
) -> None:
    with _serve(tmp_path, models, config) as server, _client(server) as client, _client(server) as leaver:
        assert _text(client) == ALPHABET
        neighbour = _endless(client)
        assert next(neighbour) == ""
        pieces = _endless(leaver)
        assert next(piece for piece in pieces if piece) == "a"
        leaver.close()
        body = {"model": "Alphabet", "messages": MESSAGES, **ENDLESS}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=0.3)
        assert ALPHABET * 3 in "".join(next(neighbour) for _ in range(200))
        client.close()
        eventually(lambda: _is_idle(_engine(server)), 3, "the engine is idle")
        assert alive(_engine(server).pid)


@pytest.mark.parametrize("state", ["running", "stopped", "split"])
def test_a_server_killed_in_mid_generation_leaves_nothing(
    tmp_path: Path, models: Path, config: Path, state: str
) -> None:
    with _serve(tmp_path, models, config, *(["--split"] if state == "split" else [])) as server:
        with _client(server) as client:
            pieces = _endless(client)
            assert next(piece for piece in pieces if piece) == "a"
            started = [process.pid for process in server.descendants()]
            if state == "stopped":
                _engine(server).suspend()
            server.process.kill()
            with pytest.raises((openai.APIError, httpx.HTTPError)):
                list(pieces)
        _assert_nothing_left(server, started)


def test_a_killed_server_takes_the_children_of_cartridges_with_it(tmp_path: Path, models: Path, config: Path) -> None:
    with _serve(tmp_path, models, config, "--cartridge", NANNY) as server:
        with _client(server) as client:
            stream = client.chat.completions.create(model="nanny", messages=MESSAGES, stream=True)
            assert any(chunk.choices[0].delta.content for chunk in stream)
            assert server.find("time.sleep(600)").pid
            started = [process.pid for process in server.descendants()]
            server.process.kill()
        _assert_nothing_left(server, started)


def test_the_next_server_ends_what_one_left_that_died_with_its_guardian(
    tmp_path: Path, models: Path, config: Path
) -> None:
    with _serve(tmp_path, models, config) as first:
        with _client(first) as client:
            pieces = _endless(client)
            assert next(piece for piece in pieces if piece) == "a"
            orphan = _engine(first)
            orphan.suspend()
            first.find("_guardian_main").kill()
            first.process.kill()
        assert alive(orphan.pid)
    with _serve(tmp_path, models, config) as second:
        assert second.url
        second.wait_for(rf"cleaned up after the host .* 1 processes ended \[{orphan.pid}\]")
        assert not alive(orphan.pid)


def _assert_nothing_left(server: Server, started: list[int]) -> None:
    deadline = time.monotonic() + 5
    eventually(lambda: not any(map(alive, started)), 5, "its processes are gone")
    eventually(lambda: list(server.folder.iterdir()) == [], deadline - time.monotonic(), "its sockets are gone")
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        pass


def test_ctrl_c_lets_a_short_answer_end(tmp_path: Path, models: Path, config: Path) -> None:
    with _serve(tmp_path, models, config) as server, _client(server) as client:
        assert _text(client) == ALPHABET
        stream = client.chat.completions.create(
            model="Alphabet", messages=MESSAGES, stream=True, extra_body={"ignore_eos": True, "max_tokens": 520}
        )
        texts = (chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert next(piece for piece in texts if piece) == "a"
        server.send(signal.SIGINT)
        assert "a" + "".join(texts) == ALPHABET * 20
        assert server.ended(10) == 0, server.output


@both_shapes
def test_ctrl_c_ends_a_long_answer_with_an_error(tmp_path: Path, models: Path, config: Path, shape: list[str]) -> None:
    with config.open("a") as file:
        file.write("drain = 0.5\n")
    with _serve(tmp_path, models, config, *shape) as server, _client(server) as client:
        pieces = _endless(client)
        assert next(piece for piece in pieces if piece) == "a"
        server.send(signal.SIGINT)
        with pytest.raises(openai.APIError, match="the server is shutting down"):
            list(pieces)
        assert server.ended(10) == 0, server.output
        assert list(server.folder.iterdir()) == []


def test_a_reader_that_stalls_holds_neither_its_request_nor_the_shutdown(
    tmp_path: Path, models: Path, config: Path
) -> None:
    with _serve(tmp_path, models, config, "--cartridge", NANNY) as server:
        host, port = server.url.removeprefix("http://").split(":")
        body = (
            b'{"model": "Alphabet", "messages": [{"role": "user", "content": "x"}], "stream": true, "ignore_eos": true}'
        )
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect((host, int(port)))
            stalled.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            stalled.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            server.wait_for("POST /v1/chat/completions 200 aborted")
            eventually(lambda: _is_idle(_engine(server)), 5, "the engine is idle")
            server.send(signal.SIGINT)
            assert server.ended(10) == 0, server.output


def test_what_a_user_reads_when_something_is_wrong(tmp_path: Path, alphabet_model: Path, config: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for name in ("whole", "gone", "torn"):
        (folder / f"{name}.gguf").write_bytes(alphabet_model.read_bytes())
    with (folder / "torn.gguf").open("r+b") as torn:
        torn.truncate(1_000_000)
    with _serve(tmp_path, folder, config) as server, _client(server) as client:
        assert "torn  BROKEN: " in server.output
        (folder / "gone.gguf").unlink()
        for model, status, code, text in [
            ("gone", 503, "model_load_failed", "gone.gguf"),
            ("torn", 503, "model_load_failed", "it was cut short"),
            ("unknown", 404, "model_not_found", "unknown"),
        ]:
            with pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(model=model, messages=MESSAGES)
            assert (caught.value.status_code, caught.value.code) == (status, code), f"{model}: {caught.value}"
            assert text in caught.value.message
        malformed = httpx.post(
            f"{server.url}/v1/chat/completions", content=b'{"model": ', headers={"Content-Type": "application/json"}
        )
        assert malformed.status_code == 400
        assert "JSON" in malformed.json()["error"]["message"]
