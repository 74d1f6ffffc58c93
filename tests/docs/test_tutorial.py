"""The tutorial is true: its files are saved, and all its commands are run, in the order of the page.

Three things differ from what a reader does: the port is a free one, there are no models of the machine's own, and the
project's tests leave out the run through the whole protocol, which takes its time.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.servers import Server, environment, serving
from tests.docs.pages import Block, blocks

PAGE = "tutorial.md"
URL = "http://127.0.0.1:8080"


class Reader:
    """Follows the page in a folder. `said` has what each command printed to stdout, by its text."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.said: dict[str, str] = {}
        self._folder = folder
        self._runtime = runtime
        self._stack = ExitStack()
        self._server: Server | None = None

    def follow(self, block: Block) -> None:
        """Do what a block asks for."""
        if block.file is not None:
            (self._folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.text.startswith("capdag serve"):
            self.end()
            (self._runtime.parent / "models").mkdir(exist_ok=True)
            options = ["--port", "0", "--models", str(self._runtime.parent / "models")]
            self._server = self._stack.enter_context(serving(self._runtime, *shlex.split(block.text)[2:], *options))
        else:
            self._run(block)

    def _run(self, block: Block) -> None:
        text = block.text if self._server is None else block.text.replace(URL, self._server.url)
        text = text.replace("-m pytest", "-m pytest -k 'not protocol'")
        shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*shell, text], capture_output=True, text=True, timeout=60, env=environment(self._runtime)
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        self.said[block.text] = done.stdout

    def end(self) -> None:
        """End the server as the reader does, with Ctrl-C."""
        if self._server is not None:
            self._server.send(signal.SIGINT)
            assert self._server.ended() == 0, self._server.output
            self._server = None
        self._stack.close()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the commands of the page printed."""
    root = tmp_path_factory.mktemp("tutorial")
    folder = root / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        reader = Reader(folder, root / "run")
        try:
            for block in blocks(PAGE):
                reader.follow(block)
        finally:
            reader.end()
    return reader.said


def of(said: dict[str, str], part: str) -> str:
    """Return what the one command with `part` in it printed."""
    (found,) = [text for command, text in said.items() if part in command]
    return found


def test_the_handler_answers_as_a_command(said: dict[str, str]) -> None:
    events = [json.loads(line) for line in of(said, "zen chat\n").splitlines() if line.startswith("{")]
    assert [next(iter(event)) for event in events] == ["text", "text", "text", "finish", "usage"]


def test_it_answers_over_http(said: dict[str, str]) -> None:
    answer = json.loads(of(said, "chat/completions"))
    assert len(answer["choices"][0]["message"]["content"].split()) == 20
    assert len(of(said, "OpenAI(").split()) == 40


def test_the_project_is_served_and_tested(said: dict[str, str]) -> None:
    assert [model["id"] for model in json.loads(of(said, "/v1/models"))["data"]] == ["parrot"]
    assert " passed" in of(said, "pytest parrot")


def test_the_cartridge_has_the_60_lines_that_are_promised() -> None:
    (cartridge,) = [block for block in blocks(PAGE) if block.file == "zen.py"]
    assert len(cartridge.text.splitlines()) <= 60
