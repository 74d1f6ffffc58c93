"""The guardian: nothing outlives a host, however it dies, and nothing is hit that should live."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import trio

from capdag.transport import _guardian_main
from capdag.transport.guardian import Guardian, new_run_id, open_guardian
from capdag.transport.process import ChildProcess, SpawnError, child_environment, spawn
from tests.leaks import alive
from tests.transport.children import (
    IGNORES_EOF,
    IGNORES_SIGTERM,
    LEAVES_GRANDCHILD,
    PYTHON,
    STOPS_ITSELF,
    read_line,
    running_host,
    start,
    wait_gone,
)


def spawn_under(guardian: Guardian, script: str = IGNORES_EOF, *, told: bool = True) -> ChildProcess:
    env = child_environment({}, guardian.run_id)
    return spawn([*PYTHON, script], env=env, guardian=guardian if told else None)


async def end(child: ChildProcess) -> None:
    """Reap a child that the guardian has killed."""
    with trio.fail_after(5):
        assert (await child.wait_exit()).signal == signal.SIGKILL
    child.reap()
    child.close()


# In a living host


async def test_the_guardian_is_apart_from_its_host() -> None:
    async with open_guardian("run-1") as guardian:
        process = psutil.Process(guardian.pid)
        assert os.getsid(guardian.pid) == guardian.pid != os.getsid(0)
        await wait_ready(process)
        assert "CAPDAG_RUN_ID" not in process.environ()
        assert process.environ()["CAPDAG_GUARDIAN_OF"] == "run-1"
        assert len({file.readlink() for file in open_files(process)}) == 2  # its end of the pipe, and /dev/null
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(sig)
        await trio.sleep(0.05)
        assert alive(guardian.pid)
    assert not psutil.pid_exists(guardian.pid)


async def wait_ready(guardian: psutil.Process) -> None:
    """Wait until the guardian ignores SIGTERM, which it sets up first."""
    with trio.fail_after(5):
        while not ignored_signals(guardian) >> (signal.SIGTERM - 1) & 1:  # noqa: ASYNC110 - another process's state
            await trio.sleep(0.005)


def ignored_signals(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))


def open_files(process: psutil.Process) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/fd").iterdir())


async def test_the_end_of_the_block_ends_what_is_left(tmp_path: Path) -> None:
    kept, forgotten, never = (tmp_path / name for name in ("kept", "forgotten", "never made"))
    kept.touch()
    forgotten.touch()
    async with open_guardian(new_run_id()) as guardian:
        told, untold = spawn_under(guardian), spawn_under(guardian, told=False)
        guardian.add_path(never)
        guardian.add_path(kept)
        guardian.add_path(forgotten)
        guardian.remove_path(forgotten)
    await end(told)
    await end(untold)
    assert not kept.exists()
    assert forgotten.exists()


async def test_cancellation_ends_the_guardian_and_what_is_left() -> None:
    with trio.CancelScope() as scope:
        async with open_guardian(new_run_id()) as guardian:
            child = spawn_under(guardian)
            scope.cancel()
            await trio.sleep_forever()
    assert not psutil.pid_exists(guardian.pid)
    await end(child)


async def test_a_forgotten_group_is_not_killed() -> None:
    outsider = start([*PYTHON, IGNORES_EOF])
    async with open_guardian(new_run_id()) as guardian:
        guardian.add_group(outsider.pid)
        guardian.remove_group(outsider.pid)
        guardian.remove_group(outsider.pid)
    await trio.sleep(0.05)
    assert outsider.poll() is None
    with outsider:
        outsider.kill()


async def test_a_process_of_another_run_is_not_killed() -> None:
    async with open_guardian("run-a") as other, open_guardian("run"):
        child = spawn_under(other, told=False)
        async with open_guardian("run-"):
            pass
        assert alive(child.pid)
    await end(child)


async def test_a_process_that_shows_its_run_only_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that was between fork and exec when the guardian first looked."""
    late = start([*PYTHON, IGNORES_EOF])
    searches = iter([[], [late.pid], [], []])
    monkeypatch.setattr(_guardian_main, "carriers", lambda variable, run_id: iter(next(searches)))
    with late:
        assert _guardian_main.kill_carriers("CAPDAG_RUN_ID", "x") == {late.pid}
        assert late.wait(5) == -signal.SIGKILL
    assert list(searches) == []


@pytest.mark.parametrize("pgid", [1, 0, -1])
async def test_a_group_that_is_everybody_is_refused(pgid: int) -> None:
    async with open_guardian(new_run_id()) as guardian:
        with pytest.raises(ValueError, match="no process group that may be killed"):
            guardian.add_group(pgid)


@pytest.mark.parametrize("run_id", ["", "a b", "a\0b", "x=y"])
async def test_a_run_id_is_one_word(run_id: str) -> None:
    with pytest.raises(ValueError, match="run id"):
        async with open_guardian(run_id):
            pass


async def test_an_interpreter_that_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")
    with pytest.raises(SpawnError, match="cannot start the guardian with /no/python"):
        async with open_guardian(new_run_id()):
            pass


# Replaced guardians


async def test_a_dead_guardian_is_replaced_and_told_everything(tmp_path: Path) -> None:
    path = tmp_path / "socket file with blanks\nand a line end"
    path.touch()
    async with open_guardian(new_run_id()) as guardian:
        first = guardian.pid
        before = start([*PYTHON, IGNORES_EOF])
        guardian.add_group(before.pid)
        guardian.add_path(path)
        os.kill(first, signal.SIGKILL)
        await wait_gone(first)
        after = spawn_under(guardian)
        assert guardian.pid != first
        assert not psutil.Process(guardian.pid).children()
    await end(after)
    with before:
        assert before.wait(5) == -signal.SIGKILL
    assert not path.exists()


async def test_a_guardian_that_does_not_read_is_replaced_and_kills_nothing(tmp_path: Path) -> None:
    async with open_guardian(new_run_id()) as guardian:
        child = spawn_under(guardian)
        assert await read_line(child) == "ready"
        first = guardian.pid
        os.kill(first, signal.SIGSTOP)
        path = tmp_path / ("x" * 200)
        for _ in range(1000):  # the pipe holds 64 KiB
            guardian.add_path(path)
            if guardian.pid != first:
                break
        assert guardian.pid != first
        await wait_gone(first)
        await trio.sleep(0.1)
        assert alive(child.pid)
    await end(child)


async def test_a_guardian_that_cannot_be_replaced_costs_no_spawn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_guardian(new_run_id()) as guardian:
        os.kill(guardian.pid, signal.SIGKILL)
        await wait_gone(guardian.pid)
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", "/no/python")
            child = spawn_under(guardian, IGNORES_EOF)
        assert "the host is not guarded until the next change" in caplog.text
        guardian.add_path(Path("/nonexistent/file"))
        assert alive(guardian.pid)
    await end(child)


# SIGKILL of the host


@pytest.mark.parametrize(
    ("children", "untold"),
    [
        pytest.param([IGNORES_SIGTERM], False, id="ignores-sigterm"),
        pytest.param([STOPS_ITSELF], False, id="stopped"),
        pytest.param([LEAVES_GRANDCHILD.format(own_session=False)], False, id="grandchild"),
        pytest.param([LEAVES_GRANDCHILD.format(own_session=True)], False, id="grandchild-in-own-session"),
        pytest.param([IGNORES_EOF, STOPS_ITSELF], True, id="spawned-but-not-told"),
    ],
)
async def test_nothing_outlives_a_killed_host(tmp_path: Path, children: list[str], untold: bool) -> None:
    path = tmp_path / "host.sock"
    path.touch()
    async with running_host(children=children, untold=untold, paths=[str(path)]) as (host, said):
        assert all(map(alive, said["left"]))
        assert len(said["left"]) >= len(children)
        host.kill()
        seconds = await wait_gone(*said["left"], said["guardian"], within=5)
    assert not path.exists()
    print(f"empty {seconds * 1000:.0f} ms after SIGKILL of the host")
