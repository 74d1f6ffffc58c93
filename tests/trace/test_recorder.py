"""The recorder as a process between a host and a cartridge: nothing changes, everything is written down."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from capdag.client import Argument
from capdag.errors import AttributionClass, RequestFailedError
from capdag.host import CartridgeRecord, HostSettings
from capdag.printable import LONGEST_LINE
from capdag.trace import Closed, Exited, FrameSeen, Trace, Unreadable, list_records, read_trace, requests_of
from capdag.wire import FrameType, FrameView, LogRecord, encode_frame, inspect, log_frame
from tests import misbehave
from tests.cartridge.driver import ECHO_COMMAND, cartridge
from tests.stack import running_stack

ECHO = "cap:echo;in=media:octets;out=media:octets"
PATTERN = bytes(range(256)) * 2_000


def recorder(path: Path, command: Sequence[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "capdag.trace", *options, "--file", str(path), "--", *command]


def traces_in(folder: Path) -> list[Trace]:
    return [read_trace(path) for path in sorted(folder.glob("it-*.trace"))]


def frames(trace: Trace, to: str) -> list[FrameView]:
    return [inspect(record.body) for record in trace.records if isinstance(record, FrameSeen) and record.to == to]


def test_what_passes_is_unchanged_and_written_down(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with cartridge(recorder(path, ECHO_COMMAND, "--payloads")) as driver:
        driver.attach()
        payloads = [b"\x5a\x00\x00\x40\x00" + PATTERN[:16_384]] * 40
        answer = driver.exchange(1, ECHO, "media:octets", payloads)
        assert b"".join(answer.values["media:octets"]) == PATTERN[:16_384] * 40
        assert driver.close() == 0
    trace = read_trace(path)
    assert [view.body for view in frames(trace, "host")] == [view.body for view in driver.frames]
    assert frames(trace, "cartridge")[0].type is FrameType.HELLO
    assert trace.records[-1] == Exited(trace.records[-1].t, code=0)
    assert [record.to for record in trace.records if isinstance(record, Closed)] == ["cartridge", "host"]
    assert [record.t for record in trace.records] == sorted(record.t for record in trace.records)
    check, echoed = requests_of(trace.records)
    assert check.cap == "cap:effect=none"
    assert (echoed.cap, echoed.end, echoed.chunks_in, echoed.bytes_in) == (ECHO, "END", 40, 40 * 16_389)
    assert echoed.bytes_out >= 40 * 16_384


def test_contents_are_masked_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with cartridge(recorder(path, ECHO_COMMAND)) as driver:
        driver.attach()
        assert driver.ask(1, ECHO, value=b"my password").type is FrameType.END
        driver.close()
    trace = read_trace(path)
    assert b"my password" not in b"".join(view.body for view in frames(trace, "host") + frames(trace, "cartridge"))
    shown = list(list_records(trace.records, rids={1}, types=set(FrameType) - {FrameType.CREDIT}, previews=True))
    assert [line.split()[2] for line in shown] == [
        "REQ", "STREAM_START", "CHUNK", "STREAM_END", "END", "STREAM_START", "CHUNK", "STREAM_END", "END",
    ]  # fmt: skip
    assert "b'xxxxxxxxxxx'" in shown[2]


@pytest.mark.parametrize(
    ("script", "code"),
    [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9), ("import os; os.abort()", -6)],
)
def test_the_host_sees_the_cartridges_own_end(tmp_path: Path, script: str, code: int) -> None:
    path = tmp_path / "run.trace"
    with cartridge(recorder(path, [sys.executable, "-S", "-c", script])) as driver:
        assert driver.exit_code() == code
    last = read_trace(path).records[-1]
    assert last == (Exited(last.t, code=code) if code >= 0 else Exited(last.t, signal=-code))


def test_what_is_no_frame_passes_too_and_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    command = [sys.executable, "-S", "-c", r"import os; os.write(1, b'Loading model...\n')"]
    with cartridge(recorder(path, command, "--payloads")) as driver:
        assert driver.exit_code() == 0
        assert os.read(driver.stdout, 100) == b"Loading model...\n"
    noted = [record for record in read_trace(path).records if isinstance(record, Unreadable)]
    assert [(record.to, record.data) for record in noted] == [("host", b"Loading model...\n")]
    assert "frame length 1282367844 at stream offset 0" in noted[0].error


def test_a_signal_for_the_group_is_the_cartridges_to_answer(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    script = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(5)); print(flush=True); time.sleep(60)"
    with cartridge(["setsid", *recorder(path, [sys.executable, "-S", "-c", script])]) as driver:
        assert os.read(driver.stdout, 1) == b"\n"
        os.killpg(driver.process.pid, signal.SIGTERM)
        assert driver.exit_code() == 5


def test_a_signal_for_the_recorder_alone_is_passed_on(tmp_path: Path) -> None:
    script = "import signal,sys,time; signal.signal(2, lambda *_: sys.exit(6)); print(flush=True); time.sleep(60)"
    with cartridge(recorder(tmp_path / "run.trace", [sys.executable, "-S", "-c", script])) as driver:
        assert os.read(driver.stdout, 1) == b"\n"
        driver.process.send_signal(signal.SIGINT)
        assert driver.exit_code() == 6


def test_a_command_that_is_none_is_named(tmp_path: Path) -> None:
    with cartridge(recorder(tmp_path / "run.trace", ["no-such-program"])) as driver:
        assert driver.exit_code() == 1
        assert driver.stderr() == "capdag trace: cannot start no-such-program: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []
    with cartridge(recorder(tmp_path / "none" / "run.trace", ECHO_COMMAND)) as driver:
        assert driver.exit_code() == 1
        assert "cannot write the trace" in driver.stderr()


async def test_a_host_serves_through_recorders_and_their_deaths(tmp_path: Path) -> None:
    into = [sys.executable, "-m", "capdag.trace", "--into", str(tmp_path), "it", "--"]
    record = CartridgeRecord(
        "it",
        [*into, *misbehave.command("Dies")],
        [misbehave.cap_object(misbehave.GOOD), misbehave.cap_object(misbehave.CAP)],
        {},
        {"PYTHONPATH": misbehave.environment()["PYTHONPATH"]},
    )
    with trio.fail_after(30):
        async with running_stack([record], settings=HostSettings(first_pause=0.1, stop_grace=1)) as stack:
            answer = await stack.client.collect(misbehave.GOOD, [Argument("media:octets", b"abc")])
            assert answer.value == b"abc"
            with pytest.raises(RequestFailedError, match="was killed by SIGKILL"):
                await stack.client.collect(misbehave.CAP, [Argument("media:octets", b"abc")])
            await stack.client.collect(misbehave.GOOD, [Argument("media:octets", b"abc")])
    first, second = traces_in(tmp_path)
    assert isinstance(first.records[-1], Exited)
    assert first.records[-1].signal == signal.SIGKILL
    assert [story.end for story in requests_of(second.records)][-1] == "END"


def test_words_of_others_are_one_bounded_line_of_a_listing() -> None:
    logs = [
        LogRecord("progress", "half\x1b[2J\nforged", 0.5),
        LogRecord("progress", "more", 7.0),
        LogRecord("progress", "none", math.nan),
        LogRecord("warn", "x" * 9000, attribution=AttributionClass.INTERNAL),
    ]
    lines = list(list_records([FrameSeen(0.0, "host", encode_frame(log_frame(1, record))) for record in logs]))
    assert lines[0].endswith(r"progress 50% half\x1b[2J\nforged")
    assert lines[1].endswith("progress (7.0) more")
    assert lines[2].endswith("progress (nan) none")
    assert len(lines[3]) == LONGEST_LINE + 1
