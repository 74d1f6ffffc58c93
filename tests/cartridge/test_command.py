"""Command mode as a person meets it: words and pipes in, bytes and exit codes out."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from capdag.cartridge import Cartridge
from capdag.cartridge._command import _Commands
from tests.cartridge import command_stub
from tests.cartridge.driver import ROOT

STUB = "tests.cartridge.command_stub"
TASKS = "tests.cartridge.async_command_stub"
ECHO = "cartridges.echo.main"
PYTHON = Path(sys.executable).name
FULL = "  param: n\n  limit: 2\n  retryable: True\n  (the request is wrong: change it; try again later)\n"
IMPORTED = b"printed by an engine while it is imported\n"


def line_of(*words: str, module: str = STUB) -> list[str]:
    return [sys.executable, "-m", "capdag.cartridge", module, *words]


def run(*words: str, module: str = STUB, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line_of(*words, module=module), cwd=ROOT, input=data, capture_output=True, timeout=30)


def test_bytes_come_back_as_they_are_through_any_window() -> None:
    data = os.urandom(1 << 20) * 12  # more than the windows of both streams hold
    done = run("echo", module=ECHO, data=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")


def test_items_are_lines_of_json_and_progress_is_lines_where_there_is_no_terminal() -> None:
    done = run("count", module=ECHO, data=b"3")
    assert (done.returncode, done.stdout) == (0, b"1\n2\n3\n")
    assert done.stderr == b"progress 33%: 1 of 3\nprogress 100%: 3 of 3\n"


def test_what_handlers_and_engines_print_stays_out_of_the_answer() -> None:
    done = run("work")
    assert (done.returncode, done.stdout) == (0, b"done")
    assert done.stderr == IMPORTED + b"printed by a handler\nwarn: careful\nprogress 50%: half\n"
    manifest = run("manifest")
    assert json.loads(manifest.stdout)["name"] == "stub"
    assert manifest.stderr == IMPORTED


def test_version_and_help() -> None:
    assert run("--version").stdout == run("-v").stdout == b"stub 1.2\n"
    text = run("--help").stdout.decode()
    assert f"Usage: python -m capdag.cartridge {STUB}" in " ".join(text.split())
    commands = text[text.index("Commands:") :].split()
    assert {"join", "sum", "words", "manifest"} <= set(commands)
    assert {"glue", "identity"}.isdisjoint(commands)
    assert run("words", "-h").stdout == (shown := run("words", "--help").stdout)
    assert b"  Give words back, and how many they are.\n\n  WORDS: some words\n" in shown


def test_a_flag_of_the_caps_own_comes_before_one_of_ours() -> None:
    cartridge = Cartridge("own", version="1")
    media, flags = "media:list;x", ["--raw", "--save", "--input"]
    args: list[dict[str, Any]] = [
        {"media_urn": f"media:{flag[2:]}", "name": flag[2:], "required": False, "sources": [{"cli_flag": flag}]}
        for flag in flags
    ]
    args[2] |= {"name": "other"}
    args.append({"media_urn": media, "name": "input", "required": True, "sources": [{"stdin": media}]})
    outputs: list[dict[str, Any]] = [
        {"media_urn": media, "name": "out", "output_description": "o", "is_sequence": True},
        {"media_urn": "media:more", "name": "more", "output_description": "m"},
    ]
    urn = f'cap:in="{media}";own;out="{media}"'
    cartridge.add_cap(urn, lambda _: None, title="Own", aliases=["own"], args=args, outputs=outputs)
    command = _Commands(cartridge, list(cartridge._caps.values())).commands["own"]
    assert [param.opts for param in command.params] == [["--raw"], ["--save"], ["--input"], ["--input-file"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jion"], "No such command 'jion'; did you mean 'join'?"),
        (["one-of-two"], "may mean 'cap:full;in=media:void;out=media:void' or 'cap:crash"),
        (["join", "a", "b", "c"], "unexpected extra argument (c)"),
        (["join", "@no/such/file"], "cannot read no/such/file: No such file or directory"),
        (["join", "-", "-"], "stdin can be the value of one argument only"),
        (["words"], "Missing parameter: arg_0"),
        (["words", "a", "--save", "cuont", "x"], "'cuont' is not"),
        (["cap:;;"], "is no cap URN"),
        (["cap:nothing"], "No such command 'cap:nothing'"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], said: str) -> None:
    caps = list(command_stub.cartridge._caps.values())
    with pytest.raises(click.UsageError) as refused:
        _Commands(command_stub.cartridge, caps).main(words, standalone_mode=False)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["jion"], 2, "Error: No such command 'jion'; did you mean 'join'?"),
        (["words", "a", "--save", "count", "no/such/file"], 2, "stub: cannot write no/such/file"),
        (["full"], 1, "stub: INVALID_REQUEST (input): n is 3 and at most 2\n" + FULL),
        (["crash"], 1, "stub: HANDLER_ERROR (internal): KeyError: 'lost'\n  (the code is at fault)\n"),
    ],
)  # fmt: skip
def test_failures_say_what_to_do(words: list[str], code: int, said: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "data", "answer"),
    [
        (("join",), b"main", b"main"),
        (("join", "first", "second"), b"not read", b"first-second"),
        (("glue", "first", "second", "--by", "+", "--mark", "!"), b"", b"first+second!"),
        (("cap:join", "-", "second", "--by="), b"main", b"mainsecond"),
        (("join", "@@at", "second", "--tail", "FILE"), b"", "@at-second-ünder".encode()),
        (("join", "@FILE", "--tail", "-"), b"tail", "ünder-tail".encode()),
        (("join", "--", "--by", "x"), b"", b"--by-x"),
    ],
)
def test_arguments_come_from_where_the_manifest_says(
    tmp_path: Path, words: tuple[str, ...], data: bytes, answer: bytes
) -> None:
    file = tmp_path / "file.txt"
    file.write_text("ünder", encoding="utf-8")
    done = run(*(word.replace("FILE", str(file)) for word in words), data=data)
    assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_a_sequence_is_read_as_lines_of_json() -> None:
    done = run("sum", data=b"1\n\n2.5\n3")
    assert (done.returncode, done.stdout) == (0, b"6.5\n")
    done = run("sum", data=b"1\ntwo\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"stub: line 2 of media:number is not JSON" in done.stderr


def test_a_named_output_is_a_line_of_its_own_or_a_file(tmp_path: Path) -> None:
    done = run("words", "a", "b", "--also", "c")
    assert done.stdout.splitlines() == [
        b'"a"', b'"b"', b'"c"', b'{"output": "media:count", "media": "media:count", "value": "3"}'
    ]  # fmt: skip
    done = run("words", "--raw", "a", "b", "--save", "count", str(tmp_path / "count"))
    assert (done.stdout, (tmp_path / "count").read_bytes()) == (b"abtoo", b"3"), "also has a default"


def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    with subprocess.Popen(
        line_of("wait"), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"word\n"
        process.stdout.close()
        assert process.wait(10) == 128 + signal.SIGPIPE
        assert process.stderr.read() == IMPORTED + b"the handler was cancelled\n"


@pytest.mark.parametrize(("module", "said"), [(STUB, IMPORTED + b"the handler"), (TASKS, b"the task")])
def test_ctrl_c_cancels_the_handler(module: str, said: bytes) -> None:
    line = line_of("wait", module=module)
    with subprocess.Popen(
        line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"word\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        shown = process.stderr.read().replace(b"tasks: ", b"stub: ")
        assert shown == said + b" was cancelled\nstub: interrupted: the request was cancelled\n"


def test_there_is_no_host_to_call_others_through() -> None:
    done = run("ask", module=TASKS)
    assert (done.returncode, done.stdout) == (1, b"")
    assert (
        b"NO_HANDLER (environment): cap 'cap:in=media:void;other;out=media:word' cannot be called in command mode"
        in (done.stderr)
    )
    assert f"capdag call 'cap:ask;in=media:void;out=media:word' --cartridge '{PYTHON} -m capdag.cartridge {TASKS}'" in (
        done.stderr.decode()
    )
    assert b"amiss" not in done.stderr


def test_nothing_of_a_handler_stays_and_stderr_may_be_closed() -> None:
    line = f"exec {shlex.join(line_of('leave'))} 2>&-"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, timeout=30)
    assert done.returncode == 0
    *left, apart = map(int, done.stdout.split())
    os.kill(apart, signal.SIGKILL)  # it was there
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_ctrl_c_does_not_wait_for_a_deaf_handler() -> None:
    with subprocess.Popen(line_of("deaf"), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"word\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM


def on_terminal(*words: str, typed: bytes = b"", module: str = STUB) -> tuple[int, str, bool]:
    """Run on a terminal, type, and return the exit code, what the screen got and whether the terminal still blocks."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        line_of(*words, module=module), cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal
    )
    screen = b""
    try:
        os.write(master, typed)
        deadline = time.monotonic() + 20
        while process.poll() is None or select.select([master], [], [], 0)[0]:
            assert time.monotonic() < deadline, screen
            if select.select([master], [], [], 0.02)[0]:
                screen += os.read(master, 4096)
        return process.returncode, screen.decode(), os.get_blocking(terminal)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(terminal)


def test_a_terminal_has_a_bar_and_is_left_as_it_was() -> None:
    code, screen, blocks = on_terminal("work")
    assert (code, blocks) == (0, True)
    assert screen.endswith("\r\x1b[K[###############---------------]  50% half\r\x1b[Kdone")


def test_input_may_be_typed() -> None:
    code, screen, _ = on_terminal("echo", typed=b"hello\n\x04", module=ECHO)
    assert code == 0
    assert "(reading from the terminal; Ctrl-D on a line of its own ends the input)" in screen
    assert screen.count("hello") == 2


def test_a_live_feed_is_opened_as_it_is_unless_a_selector_is_given() -> None:
    code, screen, _ = on_terminal("watch")
    assert (code, screen.splitlines()[-1]) == (0, "3")
    assert run("watch", data=b'{"stop": {"max_items": 1}}').stdout == b"1\n"


def test_a_wrong_setting_is_told_without_a_traceback() -> None:
    done = subprocess.run(
        line_of("echo", module=ECHO), cwd=ROOT, input=b"", capture_output=True, timeout=30,
        env={**os.environ, "CAPDAG_CONFIG": "{"},
    )  # fmt: skip
    assert done.returncode == 2
    assert b"CAPDAG_CONFIG is not JSON" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_module_that_runs_itself_has_command_mode_too() -> None:
    line = [sys.executable, "-u", "-X", "utf8", str(ROOT / "cartridges/echo/main.py"), "echo"]
    done = subprocess.run(line, cwd=ROOT, input=b"hi", capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi", b"")
