"""A replay: what failed there fails here the same way, and what is mended is told from it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from capdag.cli import main
from capdag.client import Argument, Client
from capdag.errors import RequestFailedError
from capdag.host import CartridgeRecord, HostSettings
from capdag.trace import FrameSeen, Replay, Trace, TraceError, TraceWriter, read_trace, replay, requests_of, select
from capdag.wire import DEFAULT_LIMITS, USER_CANCEL, Frame, FrameType, cancel_frame, hello_frame, view_of
from tests import misbehave
from tests.cartridge.driver import ECHO_COMMAND, STUB_COMMAND, cartridge, whole_request
from tests.cli.servers import capdag
from tests.stack import running_stack

ECHO = "cap:echo;in=media:octets;out=media:octets"
SLOW = "cap:slow-echo;in=media:octets;out=media:octets"


def misdeed(name: str, *arguments: str) -> list[str]:
    """Return a command that needs nothing of the environment it is started in."""
    path = misbehave.environment()["PYTHONPATH"]
    return ["env", f"PYTHONPATH={path}", *misbehave.command(name, *arguments)]


async def recorded(folder: Path, command: Sequence[str], caps: Sequence[str], pieces: Sequence[bytes]) -> Trace:
    """Ask each of `caps` in turn through a whole stack, with contents kept."""
    into = [sys.executable, "-m", "capdag.trace", "--payloads", "--into", str(folder), "it", "--"]
    known = [misbehave.cap_object(cap) for cap in caps]
    record = CartridgeRecord("it", [*into, *command], known)
    async with running_stack([record], settings=HostSettings(stop_grace=2)) as stack:
        for cap in caps:
            await ask(stack.client, cap, pieces)
    (path,) = sorted(folder.glob("*.trace"))  # noqa: ASYNC240
    return read_trace(path)


async def ask(client: Client, cap: str, pieces: Sequence[bytes]) -> None:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    with suppress(RequestFailedError):
        await client.collect(cap, [Argument("media:octets", body())])


def ends(came: Replay) -> list[str | None]:
    return [outcome.now for outcome in came.outcomes if outcome.cap != "cap:effect=none"]


async def test_a_stream_beyond_the_window_goes_the_same_way(tmp_path: Path) -> None:
    with trio.fail_after(30):
        trace = await recorded(tmp_path, ECHO_COMMAND, [ECHO], [b"%d" % n * 3_000 for n in range(100)])
        came = await replay(trace, ECHO_COMMAND)
    assert came.notes == []
    assert came.same
    assert ends(came) == ["END"]
    assert came.exit_now == came.exit_then == "exited with status 0"


async def test_a_death_is_died_again_and_a_mended_cartridge_is_told_from_it(tmp_path: Path) -> None:
    with trio.fail_after(30):
        trace = await recorded(tmp_path, misdeed("Dies"), [misbehave.GOOD, misbehave.CAP], [b"abc"])
        again = await replay(trace, misdeed("Dies"), patience=5)
        mended = await replay(trace, misdeed("EchoesAtOnce"), patience=2)
    assert again.same
    assert ends(again) == ["END", None]
    assert again.exit_now == "killed by SIGKILL"
    assert not mended.same
    assert ends(mended) == ["END", "END"]
    assert [outcome.same for outcome in mended.outcomes] == [True, True, False]


@pytest.mark.parametrize("name", ["CallsWhole", "FourPieces"])
async def test_calls_and_streams_come_again(tmp_path: Path, name: str) -> None:
    with trio.fail_after(30):
        trace = await recorded(tmp_path, misdeed(name), [misbehave.GOOD, misbehave.CAP], [b"abc"])
        came = await replay(trace, misdeed(name), patience=5)
    assert came.notes == []
    assert came.same
    assert any(story.asked == "host" for story in requests_of(trace.records)) == (name == "CallsWhole")


async def test_what_is_no_frame_comes_again(tmp_path: Path) -> None:
    command = misdeed("BadBytes", "ffffffff")
    with trio.fail_after(30):
        trace = await recorded(tmp_path, command, [misbehave.GOOD, misbehave.CAP], [b"abc"])
        came = await replay(trace, command, patience=2)
    assert came.violation is not None
    assert "frame length 4294967295" in came.violation
    assert ends(came) == ["END", None]


def test_a_cancel_in_mid_stream_comes_at_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    command = [sys.executable, "-m", "capdag.trace", "--payloads", "--file", str(path), "--", *ECHO_COMMAND]
    with cartridge(command) as driver:
        driver.attach()
        driver.send(*whole_request(1, SLOW, "media:octets", b"x" * 100))
        for _ in range(3):
            driver.next(lambda view: view.type is FrameType.CHUNK)
        driver.send(cancel_frame(1, USER_CANCEL))
        assert driver.terminal(1).type is FrameType.ERR
        driver.close()
    came = trio.run(replay, read_trace(path), ECHO_COMMAND)
    assert came.same
    assert ends(came) == ["CANCELLED / user"]


async def test_one_request_of_many_is_played_alone(tmp_path: Path) -> None:
    with trio.fail_after(30):
        trace = await recorded(tmp_path, ECHO_COMMAND, [ECHO, SLOW, ECHO], [b"ab"])
        slow = next(story for story in requests_of(trace.records) if story.cap == SLOW)
        came = await replay(select(trace, {slow.rid}), ECHO_COMMAND)
    assert [outcome.cap for outcome in came.outcomes] == ["cap:effect=none", SLOW]
    assert came.same


async def test_a_cartridge_that_does_nothing_is_waited_for_within_bounds(tmp_path: Path) -> None:
    with trio.fail_after(30):
        trace = await recorded(tmp_path, ECHO_COMMAND, [ECHO], [b"abc"])
        came = await replay(trace, [sys.executable, "-S", "-c", "import time; time.sleep(60)"], patience=0.2)
    assert not came.same
    assert came.notes == ["HELLO of 0: 0 of 1 came"]
    assert came.exit_now == "killed by SIGTERM"


async def test_a_trace_without_its_beginning_is_refused(tmp_path: Path) -> None:
    trace = await recorded(tmp_path, ECHO_COMMAND, [ECHO], [b"abc"])
    with pytest.raises(TraceError, match="does not begin with a HELLO to the cartridge"):
        await replay(Trace(trace.head, trace.records[1:]), ECHO_COMMAND)


def test_the_command_records_shows_and_replays(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "traces"
    asked = ["call", ECHO, "--trace", str(folder), "--trace-payloads"]
    done = capdag(run, *asked, data=b"hello")
    assert (done.returncode, done.stdout) == (0, b"hello"), done.stderr
    (file,) = folder.glob("echo-*.trace")

    shown = capdag(run, "trace", "show", str(file), "--previews").stdout.decode()
    assert "contents kept" in shown.splitlines()[0]
    assert "b'hello'" in shown
    assert f"END  {ECHO}" in shown.splitlines()[-1]
    rid = shown.splitlines()[-1].split()[0]
    only = capdag(run, "trace", "show", str(file), "--request", rid, "--type", "req", "--type", "err").stdout.decode()
    assert [line.split()[2] for line in only.splitlines()[1:-2]] == ["REQ"]

    command = ["trace", "replay", str(file), "--json", "--", *ECHO_COMMAND]
    done = capdag(run, *command)
    assert (done.returncode, json.loads(done.stdout)["same"]) == (0, True)
    done = capdag(run, "trace", "replay", str(file), "--patience", "0.3", "--", *STUB_COMMAND)
    assert done.returncode == 1
    assert f"DIFFERS  {rid}  NO_HANDLER / environment  (recorded: END)  {ECHO}" in done.stdout.decode()


@pytest.mark.parametrize("command", ["serve", "host", "call"])
def test_what_has_cartridges_records_them(command: str) -> None:
    options = {option for param in main.commands[command].params for option in param.opts}
    assert {"--trace", "--trace-payloads"} <= options


async def test_mistakes_are_answered(tmp_path: Path) -> None:
    masked, req = tmp_path / "run.trace", Frame(FrameType.REQ, 1, cap=ECHO, payload=b"")
    writer = TraceWriter(masked, ["python3", "mine.py"], payloads=False)
    writer.write(FrameSeen(0.0, "cartridge", view_of(hello_frame(DEFAULT_LIMITS)).body))
    writer.close()
    asked = tmp_path / "asked.trace"
    writer = TraceWriter(asked, ["python3", "mine.py"], payloads=False)
    writer.write(*(FrameSeen(0.0, "cartridge", view_of(frame).body) for frame in [hello_frame(DEFAULT_LIMITS), req]))
    writer.close()
    for arguments, message in [
        (
            ["call", ECHO, "--trace-payloads"],
            "--trace-payloads keeps the contents of what --trace DIR records: give both",
        ),
        (["trace", "replay", str(masked), "--", "x"], "was recorded without contents: record it with --payloads, or"),
        (["trace", "show", str(masked), "--request", "zz"], "no request's RID begins with 'zz'; there are none"),
        (["trace", "show", str(masked), "--type", "reqq"], "'reqq' is no frame type; there are cancel, chunk, "),
        (
            ["trace", "replay", str(masked), "--masked", "--", "x"],
            "holds no request to the cartridge: there is nothing",
        ),
        (["trace", "replay", str(asked), "--masked", "--", "no-such"], "there is no program no-such"),
        (["trace", "show", str(tmp_path)], "cannot read the trace"),
    ]:
        done = await trio.to_thread.run_sync(CliRunner().invoke, main, arguments)
        assert message in " ".join(done.output.split()), arguments
        assert done.exit_code in (1, 2)
