"""`capdag call` as a process: bytes in, bytes out."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.servers import capdag, environment, eventually
from tests.cli.upper import UPPER

COMMAND = shlex.join([sys.executable, str(Path(__file__).with_name("upper.py"))])
HOSTILE = shlex.join([sys.executable, str(Path(__file__).with_name("hostile.py"))])
STUB = shlex.join([sys.executable, "-m", "capdag.cartridge", "tests.cartridge.command_stub"])
PATTERN = bytes(range(256)) * 4096


def test_bytes_go_through_a_pipe_unchanged(tmp_path: Path) -> None:
    done = capdag(tmp_path / "run", "call", "echo", data=PATTERN)
    assert done.returncode == 0, done.stderr
    assert done.stdout == PATTERN
    assert done.stderr == b""


@pytest.mark.parametrize("cap", [UPPER, "shout"])
def test_a_foreign_cartridge_is_called_by_its_cap_or_its_alias(tmp_path: Path, cap: str) -> None:
    done = capdag(tmp_path / "run", "call", cap, "--cartridge", COMMAND, data=b"hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"HELLO", b"")


def test_a_file_is_an_argument(tmp_path: Path) -> None:
    file = tmp_path / "a=b.bin"
    file.write_bytes(PATTERN)
    done = capdag(tmp_path / "run", "call", "echo", "--arg", f"media:octets=@{file}", data=b"not read")
    assert (done.returncode, done.stdout, done.stderr) == (0, PATTERN, b"")


def test_a_sequence_is_sent_item_by_item(tmp_path: Path) -> None:
    done = capdag(tmp_path / "run", "call", "sum", "--cartridge", STUB, "--arg", "-", "--arg", "@no/such", data=b"1")
    assert (done.returncode, done.stdout) == (2, b"")
    done = capdag(tmp_path / "run", "call", "sum", "--cartridge", STUB, data=b"1\n\n2.5\n3")
    assert (done.returncode, done.stdout) == (0, b"6.5\n"), done.stderr


def test_items_are_lines_of_json_and_progress_goes_to_stderr(tmp_path: Path) -> None:
    done = capdag(tmp_path / "run", "call", "count", "--arg", "media:count;enc=utf-8=3")
    assert (done.returncode, done.stdout) == (0, b"1\n2\n3\n")
    assert b"progress 33%: 1 of 3\n" in done.stderr
    done = capdag(tmp_path / "run", "call", "count", "--arg", "1", "--json")
    assert json.loads(done.stdout) == {"media": "media:list;number", "value": 1, "meta": {"index": 0}}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fail", "--arg", "NO_LUCK input the dice fell"], 1, "Error: NO_LUCK (input): the dice fell"),
        (["ekko"], 1, "Error: no cartridge serves 'ekko'; served: echo, count, slow-echo, fail"),
        (["count", "--arg", "-5"], 1, "Error: INVALID_REQUEST (input): need a whole number from 0 on, not '-5'"),
        (["count", "--arg", "-5"], 1, "\n  (the request is wrong: change it)\n"),
        (["count", "--arg", "x"], 1, "need a whole number from 0 on, not 'x'"),
        (["echo", "--arg", "@none.txt"], 2, "Error: cannot read none.txt: No such file or directory"),
        (["upper", "--cartridge", "no-such-program"], 1, "there is no program no-such-program"),
    ],
)
def test_what_goes_wrong_is_said_in_one_message(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = capdag(tmp_path / "run", "call", *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert list((tmp_path / "run" / "capdag").iterdir()) == []


@pytest.mark.parametrize(
    ("redirections", "message"),
    [
        (">/dev/full", "Error: cannot write the answer to stdout: No space left on device"),
        (">&-", "Error: stdout is closed, so the answer has nowhere to go: redirect it to a file"),
        ("<&-", "Error: stdin is closed: give the input with --arg, or redirect stdin"),
        ("<&- >&-", "Error: stdin is closed: give the input with --arg, or redirect stdin"),
    ],
)
def test_streams_that_cannot_be_used_are_one_line_of_error(tmp_path: Path, redirections: str, message: str) -> None:
    script = f"exec {shlex.quote(sys.executable)} -m capdag call echo {redirections}"
    done = subprocess.run(
        ["sh", "-c", script], input=b"hi", capture_output=True, env=environment(tmp_path / "run"), timeout=60
    )
    assert done.stderr.decode() == f"{message}\n"
    assert (done.returncode, done.stdout) == (1, b"")


def test_without_a_stderr_a_call_works(tmp_path: Path) -> None:
    script = f"exec {shlex.quote(sys.executable)} -m capdag call count --arg 2 2>&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, env=environment(tmp_path / "run"), timeout=60)
    assert (done.returncode, done.stdout) == (0, b"1\n2\n")


def test_a_bad_cartridge_beside_what_is_called_is_told_of(tmp_path: Path) -> None:
    done = capdag(tmp_path / "run", "call", "echo", "--cartridge", "no-such-program --x", data=b"hi")
    assert (done.returncode, done.stdout) == (0, b"hi")
    assert b"there is no program no-such-program" in done.stderr


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_cartridge_s_words_do_not_act_on_a_terminal(tmp_path: Path, on_terminal: bool) -> None:
    command = [sys.executable, "-m", "capdag", "call", "hostile", "--arg", "x", "--cartridge", HOSTILE]
    ours, theirs = os.openpty() if on_terminal else os.pipe()
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment(tmp_path / "run")) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    os.set_blocking(ours, False)
    assert os.read(ours, 1000) == (rb"\x1b[2Jgone\xff" + b"\r\n" if on_terminal else b"\x1b[2Jgone\xff\r\n")
    os.close(ours)
    os.close(theirs)
    shown = errors.decode()
    assert r"warn\x1b[2J: red\x1b[31m" + "\n    Error: forged\n" in shown
    assert "Error: " + ("BAD" * 50)[:64] + r"… (internal): why\x1b[2J" + "\n    Error: forged\n" in shown
    assert shown.replace("\n", "").isprintable()
    assert len(shown.splitlines()) < 60


def test_a_cartridge_that_failed_to_start_is_named_by_the_error(tmp_path: Path) -> None:
    command = shlex.join(["env", "CAPDAG_TEST_HOSTILE=refuse", *shlex.split(HOSTILE)])
    done = capdag(tmp_path / "run", "call", "hostile", "--cartridge", command, "--log-level", "error")
    assert done.returncode == 1
    error = done.stderr.decode().partition("Error: ")[2].splitlines()
    assert error[0].startswith("no cartridge serves 'hostile'; served: echo,")
    assert error[1:] == ["cartridge 'env' exited with status 3 before it was ready"]


def _start_slow_call(tmp_path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "capdag", "call", "slow-echo", "--arg", "a" * 1000]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path / "run"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_call_and_is_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    with _start_slow_call(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"a"
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert b"interrupted; the call was cancelled" in errors
    assert b"Traceback" not in errors


def test_ctrl_c_does_not_wait_for_stdin(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "capdag", "call", "echo", "--log-level", "info"]
    pipe, env = subprocess.PIPE, environment(tmp_path / "run")
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        assert process.stderr is not None
        while b"is ready" not in (line := process.stderr.readline()):
            assert line, "it ended"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
        assert b"Error: interrupted; the call was cancelled\n" in process.stderr.read()


def test_a_reader_that_has_enough_ends_the_call(tmp_path: Path) -> None:
    with _start_slow_call(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"a"
        process.stdout.close()
        assert process.wait(10) == 141  # as SIGPIPE ends a program
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_killed_call_leaves_nothing(tmp_path: Path) -> None:
    with _start_slow_call(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"a"
        process.kill()
    folder = tmp_path / "run" / "capdag"
    eventually(lambda: list(folder.iterdir()) == [], 5, "its run file is gone")
