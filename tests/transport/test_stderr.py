"""stderr: always drained, into a log and a tail that are both bounded and safe to read."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from capdag.transport.process import spawn
from capdag.transport.stderr import LINE_LIMIT, LINES_A_SECOND, READ_SIZE, TAIL_LIMIT, StderrTail, drain_stderr
from tests.transport.children import FLOODS_STDERR, PYTHON, read_line

LOG = logging.getLogger("capdag.cartridge")


class Drained:
    """A pipe whose reading end is being drained."""

    def __init__(self, write_fd: int, scope: trio.CancelScope) -> None:
        self._write_fd, self.scope, self.tail = write_fd, scope, StderrTail()

    async def write(self, data: bytes) -> None:
        await trio.to_thread.run_sync(os.write, self._write_fd, data)
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def drained(name: str = "echo") -> AsyncIterator[Drained]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    try:
        async with trio.open_nursery() as nursery:
            pipe = Drained(write_fd, nursery.cancel_scope)

            async def drain() -> None:
                await drain_stderr(read_fd, name=name, tail=pipe.tail, log=LOG)

            nursery.start_soon(drain)
            await trio.testing.wait_all_tasks_blocked()
            try:
                yield pipe
            finally:
                os.close(write_fd)
    finally:
        os.close(read_fd)


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)


async def test_lines_go_to_the_log_of_the_cartridge_as_they_come(caplog: pytest.LogCaptureFixture) -> None:
    async with drained("llama-cpp/tiny") as pipe:
        await pipe.write(b"one\ntw")
        assert caplog.messages == ["one"]
        await pipe.write(b"o\r\n\n\nthree\rfour")
        assert caplog.messages == ["one", "two", "three"]
    assert caplog.messages == ["one", "two", "three", "four"]
    assert {(record.name, record.levelno) for record in caplog.records} == {
        ("capdag.cartridge.llama-cpp/tiny", logging.INFO)
    }
    assert pipe.tail.text() == "one\ntwo\nthree\nfour"


async def test_progress_by_carriage_return_is_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        await pipe.write(b"\r10 %\r20 %")
        assert caplog.messages == ["10 %"]
        await pipe.write(b"\r")
        assert caplog.messages == ["10 %", "20 %"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"caf\xc3\xa9 \xe2\x9c\x93", "café ✓"),
        (b"a\tb", "a\tb"),
        (b"\xff\xfe\xc3", "\\xff\\xfe\\xc3"),
        (b"\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        (b"a\x00b\x07c\x7f", "a\\x00b\\x07c\\x7f"),
        ("a\u2028b\u0085c\u202ed".encode(), "a\\u2028b\\x85c\\u202ed"),
        (b"100 %s %d {x}", "100 %s %d {x}"),
        (b"back\\slash", "back\\slash"),
    ],
)
async def test_what_is_not_printable_is_escaped(written: bytes, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        await pipe.write(written + b"\n")
    assert caplog.messages == [shown]
    assert pipe.tail.text() == shown


async def test_a_character_cut_between_reads_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        for byte in "naïve ✓\n".encode():
            await pipe.write(bytes([byte]))
    assert caplog.messages == ["naïve ✓"]


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_long_line_is_cut_once_and_marked(pieces: int, caplog: pytest.LogCaptureFixture) -> None:
    line = b"x" * (LINE_LIMIT + 7 * 700)
    async with drained() as pipe:
        for i in range(pieces):
            size = len(line) // pieces + 1
            await pipe.write(line[i * size : (i + 1) * size])
        await pipe.write(b"end\nnext\n")
    assert caplog.messages == ["x" * LINE_LIMIT + f" [cut at {LINE_LIMIT} bytes]", "next"]
    assert pipe.tail.text().endswith("xend\nnext")


async def test_a_long_line_that_is_never_finished_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        await pipe.write(b"x" * (LINE_LIMIT + 1))
    assert caplog.messages == ["x" * LINE_LIMIT + f" [cut at {LINE_LIMIT} bytes]"]


async def test_a_line_of_the_limit_is_whole(caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        await pipe.write(b"x" * LINE_LIMIT + b"\n")
    assert caplog.messages == ["x" * LINE_LIMIT]


async def test_an_endless_line_takes_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        for _ in range(64):
            await pipe.write(b"y" * 65536)
    assert caplog.messages == ["y" * LINE_LIMIT + f" [cut at {LINE_LIMIT} bytes]"]
    assert pipe.tail.text() == "…" + "y" * TAIL_LIMIT


async def test_a_tail_keeps_the_end() -> None:
    tail = StderrTail()
    assert tail.text() == ""
    tail.feed(b"a" * TAIL_LIMIT)
    assert tail.text() == "a" * TAIL_LIMIT
    tail.feed(b"\nlast words")
    assert len(tail.text()) == TAIL_LIMIT + len("…")
    assert tail.text().startswith("…aaa")
    assert tail.text().endswith("a\nlast words")


async def test_a_flood_is_counted_and_summarised(
    caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    async with drained() as pipe:
        await pipe.write(b"line\n" * (LINES_A_SECOND + 50))
        assert caplog.messages == ["line"] * LINES_A_SECOND
        mock_clock.jump(0.5)
        await pipe.write(b"more\n" * 7)
        assert len(caplog.messages) == LINES_A_SECOND
        mock_clock.jump(0.6)  # nothing more is written: the count is told all the same
        await trio.testing.wait_all_tasks_blocked()
        assert caplog.messages[LINES_A_SECOND:] == [
            "57 more lines on stderr were not logged (the limit is 200 a second)"
        ]
        assert caplog.records[-1].levelno == logging.WARNING
        await pipe.write(b"calm\n")
        assert caplog.messages[-1] == "calm"
        await pipe.write(b"again\n" * LINES_A_SECOND)
    assert caplog.messages[-1] == "1 more lines on stderr were not logged (the limit is 200 a second)"
    assert pipe.tail.text().endswith("calm" + "\nagain" * LINES_A_SECOND)


async def test_other_tasks_run_between_two_reads_of_a_flood() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    size = fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.write(write_fd, b"\n" * size)
    os.close(write_fd)
    passes = 0
    async with trio.open_nursery() as nursery:

        async def count() -> None:
            nonlocal passes
            while True:
                await trio.lowlevel.checkpoint()
                passes += 1

        nursery.start_soon(count)
        await drain_stderr(read_fd, name="echo", tail=StderrTail(), log=LOG)
        nursery.cancel_scope.cancel()
    os.close(read_fd)
    assert passes >= size // READ_SIZE - 1


async def test_a_cancelled_drain_takes_what_is_there(caplog: pytest.LogCaptureFixture) -> None:
    async with drained() as pipe:
        os.write(pipe._write_fd, b"last words\nunfinished")
        pipe.scope.cancel()
    assert caplog.messages == ["last words", "unfinished"]
    assert pipe.tail.text() == "last words\nunfinished"


async def test_a_cancelled_drain_ends_under_a_flood() -> None:
    child = spawn([*PYTHON, FLOODS_STDERR], env=os.environ)
    await read_line(child)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            tail = StderrTail()

            async def drain() -> None:
                await drain_stderr(child.stderr_fd, name="flood", tail=tail, log=LOG)

            nursery.start_soon(drain)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        await child.stop(0)
    child.close()
    assert tail.text().startswith("…")


async def test_closing_stderr_ends_the_drain() -> None:
    child = spawn([*PYTHON, "import sys; sys.stdin.read()"], env=os.environ)
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            await drain_stderr(child.stderr_fd, name="echo", tail=StderrTail(), log=LOG)

        nursery.start_soon(drain)
        await trio.testing.wait_all_tasks_blocked()
        child.close_stderr()
    await child.stop(5)
    child.close()


async def test_a_child_that_writes_much_before_its_answer_is_not_blocked() -> None:
    script = "import os, sys\nos.write(2, b'z' * 70000)\nprint('answer', flush=True)\nsys.exit(1)"
    child = spawn([*PYTHON, script], env=os.environ)
    tail = StderrTail()
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            await drain_stderr(child.stderr_fd, name="echo", tail=tail, log=LOG)

        nursery.start_soon(drain)
        assert await read_line(child) == "answer"
        await child.wait_exit()
        child.reap()
    child.close()
    assert tail.text() == "…" + "z" * TAIL_LIMIT


async def test_the_last_line_of_a_child_that_fails_at_start_is_in_the_tail() -> None:
    child = spawn([*PYTHON, "import sys\nsys.exit('no weights in /models: run capdag models fetch')"], env=os.environ)
    tail = StderrTail()
    with trio.fail_after(5):
        await drain_stderr(child.stderr_fd, name="echo", tail=tail, log=LOG)
        status = await child.wait_exit()
    child.reap()
    child.close()
    assert f"{status.describe()}: {tail.text()}" == (
        "exited with status 1: no weights in /models: run capdag models fetch"
    )
