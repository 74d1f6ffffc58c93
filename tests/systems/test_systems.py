"""Windows and macOS: bytes stay bytes, trees end whole, spawning works beside busy threads.

Cases run on every system unless they say for which they are.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing

from capdag.cli._folders import FolderError, admin_sockets
from capdag.host import CartridgeRecord
from capdag.trace import TraceError
from capdag.trace.recorder import record
from capdag.transport import (
    AddressError,
    LinkEnd,
    StderrTail,
    StreamLink,
    child_environment,
    drain_stderr,
    new_run_id,
    open_guardian,
    parse_address,
    spawn,
)
from capdag.transport.guardian import _FileGuardian
from capdag.wire import FrameView, body_end_frame, view_of
from cartridges.echo import ECHO
from tests.cartridge import stub_caps
from tests.host.driver import bench
from tests.misbehave import cap_object

ROOT = Path(__file__).parents[2]
EVERY_BYTE = bytes(range(256)) + b"\n\r\x1a\r\n"
WINDOWS = pytest.mark.skipif(sys.platform != "win32", reason="for Windows: not run here")


@pytest.mark.skipif(sys.platform == "win32", reason="for systems that have what Windows has not")
def test_every_module_can_be_imported_on_windows() -> None:
    command = [sys.executable, "-m", "tests.systems.elsewhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith(" modules\n"), done.stderr


@pytest.mark.parametrize(
    ("launcher", "module", "cap"),
    [
        ("capdag.cartridge", "cartridges.echo.main", ECHO),
        ("tests.cartridge.threaded", "cartridges.echo.main", ECHO),
        ("tests.cartridge.threaded", "tests.cartridge.tasks_stub", stub_caps.ECHO),
    ],
)
async def test_every_byte_comes_back_as_it_was(launcher: str, module: str, cap: str) -> None:
    """W1; also by the loop that only Windows takes, whose writes all wait. More than a pipe holds goes each way."""
    echo = CartridgeRecord("cart", [sys.executable, "-m", launcher, module], [cap_object(cap)], cwd=ROOT)
    async with bench(echo) as it:
        pieces = [EVERY_BYTE, *[EVERY_BYTE * 400] * 6]
        assert await it.relay.call(cap).body(*pieces).succeeded() == b"".join(pieces)


@WINDOWS
async def test_what_a_launcher_has_started_ends_with_it(tmp_path: Path) -> None:
    """W2."""
    script = tmp_path / "cartridge.py"
    script.write_text("from cartridges.echo.main import cartridge\ncartridge.run()\n")
    command = ["cmd", "/c", sys.executable, str(script)]
    echo = CartridgeRecord("cart", command, [cap_object(ECHO)], env={"PYTHONPATH": str(ROOT)}, cwd=ROOT)
    async with bench(echo) as it:
        assert await it.relay.call(ECHO).body(b"x").succeeded() == b"x"
        assert _running(script)
    assert not _running(script)


def _running(script: Path) -> list[int]:
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if str(script) in (process.info["cmdline"] or ())
    ]


async def test_processes_start_beside_busy_threads() -> None:
    """W3."""
    program = shutil.which("true") or sys.executable
    command = [program] if program != sys.executable else [program, "-I", "-S", "-c", ""]
    with _busy_threads(16), trio.fail_after(60):
        for _ in range(50):
            child = spawn(command, env=child_environment({}, new_run_id()))
            assert (await child.wait_exit()).code == 0
            child.reap()
            child.close()


@contextmanager
def _busy_threads(count: int) -> Iterator[None]:
    over = threading.Event()
    block = bytes(1 << 17)

    def work() -> None:
        while not over.wait(0.001):
            hashlib.sha256(block).digest()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


async def test_stderr_is_drained_from_a_stream_with_its_last_words(autojump_clock: trio.testing.MockClock) -> None:
    """As on Windows, where a pipe is no descriptor to poll."""
    writer, reader = trio.testing.memory_stream_one_way_pair()
    tail = StderrTail()
    async with trio.open_nursery() as nursery:

        async def drain() -> None:
            await drain_stderr(reader, name="echo", tail=tail, log=logging.getLogger(__name__))

        nursery.start_soon(drain)
        await writer.send_all(b"first\n")
        await trio.testing.wait_all_tasks_blocked()
        assert tail.text() == "first"
        await writer.send_all(b"last")
        nursery.cancel_scope.cancel()
    assert tail.text() == "first\nlast"


async def test_what_a_process_has_left_in_a_stream_is_read() -> None:
    """As `FdLink.drain` does it for a descriptor."""
    ours, theirs = trio.testing.memory_stream_pair()
    far = StreamLink("far", theirs, close=lambda: None)
    near = StreamLink("near", ours, close=lambda: None)
    seen = _Seen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.run, seen)
        nursery.start_soon(far.run, _Seen())
        far.send([view_of(body_end_frame(1))])
        await far.flushed()
        await theirs.send_stream.aclose()
        await near.read_rest()
        assert near.end is LinkEnd.EOF
        nursery.cancel_scope.cancel()
    assert len(seen.views) == 1


class _Seen:
    def __init__(self) -> None:
        self.views: list[FrameView] = []

    def deliver(self, batch: Sequence[FrameView]) -> None:
        self.views += batch

    def closed(self, reason: str) -> None:
        """Nothing to do."""


async def test_where_jobs_end_processes_the_guardian_sees_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, given_back = tmp_path / "ours", tmp_path / "given back"
    ours.touch()
    given_back.touch()
    monkeypatch.setattr("capdag.transport.guardian.sys.platform", "win32")
    async with open_guardian(new_run_id()) as guardian:
        monkeypatch.undo()
        assert isinstance(guardian, _FileGuardian)
        guardian.add_group(os.getpid())
        guardian.add_path(ours)
        guardian.add_path(given_back)
        guardian.remove_path(given_back)
    assert not ours.exists()
    assert given_back.exists()


def test_what_windows_lacks_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("socket.AF_UNIX")
    monkeypatch.setattr("capdag.cli._folders.HAS_UNIX_SOCKETS", False)
    monkeypatch.setattr("capdag.trace.recorder._CAN_RECORD", False)
    trace = tmp_path / "trace"
    with pytest.raises(AddressError, match=r"use tcp:127\.0\.0\.1:PORT"):
        parse_address("unix:/run/models.sock")
    with pytest.raises(FolderError, match="GET /healthz"):
        admin_sockets()
    with pytest.raises(TraceError, match="leave --trace out"):
        record(trace, ["true"], payloads=False)
    assert not trace.exists()
