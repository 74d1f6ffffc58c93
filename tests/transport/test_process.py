"""Processes: spawn, stop, reap; the misdeeds of children; nothing is left."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing

from capdag.errors import AttributionClass
from capdag.transport import process as process_module
from capdag.transport._exits import ExitStatus, OomKills
from capdag.transport.guardian import new_run_id, open_guardian
from capdag.transport.process import ENGINE_ENVIRONMENT, ChildProcess, SpawnError, child_environment, spawn
from tests.leaks import alive, assert_no_leaks
from tests.transport.children import (
    FLOODS_STDERR,
    IGNORES_EOF,
    IGNORES_SIGTERM,
    LEAVES_GRANDCHILD,
    OBEYS_EOF,
    PYTHON,
    STOPS_ITSELF,
    read_line,
    wait_gone,
)

ENV = dict(os.environ)


@contextmanager
def spawned(script: str) -> Iterator[ChildProcess]:
    child = spawn([*PYTHON, script], env=ENV)
    try:
        yield child
    finally:
        child.close()


# Spawn


async def test_a_child_leads_a_session_and_has_three_descriptors(tmp_path: Path) -> None:
    script = (
        "import json, os\n"
        "print(json.dumps([os.getsid(0), os.getpgid(0), os.getcwd(), os.environ['X'], os.listdir('/proc/self/fd')]))"
    )
    child = spawn([*PYTHON, script], env={**ENV, "X": "1"}, cwd=tmp_path)
    session, group, folder, variable, descriptors = json.loads(await read_line(child))
    assert (session, group, folder, variable) == (child.pid, child.pid, str(tmp_path), "1")
    assert sorted(descriptors) == ["0", "1", "2", "3"]  # 3 is the listing itself
    assert (await child.stop(5)).code == 0
    child.close()


async def test_parent_ends_are_non_blocking_and_large() -> None:
    with spawned(OBEYS_EOF) as child:
        assert not any(map(os.get_blocking, (child.stdin_fd, child.stdout_fd, child.stderr_fd)))
        assert fcntl.fcntl(child.stdin_fd, fcntl.F_GETPIPE_SZ) == 1 << 20
        assert fcntl.fcntl(child.stdout_fd, fcntl.F_GETPIPE_SZ) == 1 << 20
        await child.stop(5)


def _file(path: Path, content: str, mode: int) -> str:
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make_command", "said"),
    [
        (lambda tmp: [""], "the name of the program is empty; say what to run"),
        (lambda tmp: [str(tmp)], "is a folder; name the program in it"),
        (lambda tmp: ["no-such-engine", "--x"], "there is no program no-such-engine; install it"),
        (lambda tmp: [str(tmp / "missing")], "there is no program"),
        (lambda tmp: [_file(tmp / "plain", "", 0o644)], "make it executable"),
        (lambda tmp: [_file(tmp / "s", "#!/no/interpreter\n", 0o755)], "the interpreter on the first line"),
        (lambda tmp: [_file(tmp / "text", "hello", 0o755)], "no program for this machine"),
        (lambda tmp: [sys.executable, "a\0b"], "null byte"),
        (lambda tmp: [sys.executable, "x" * 200_000], "Argument list too long"),
        (lambda tmp: [], "empty command"),
    ],
)
async def test_a_command_that_cannot_start_is_named_with_the_remedy(
    tmp_path: Path, make_command: Callable[[Path], list[str]], said: str
) -> None:
    command = make_command(tmp_path)
    with pytest.raises(SpawnError, match=said) as raised:
        spawn(command, env=ENV)
    assert raised.value.code == "SPAWN_FAILED"
    assert raised.value.attribution is AttributionClass.ENVIRONMENT
    assert all(part in str(raised.value) for part in command[:1])


async def test_a_missing_working_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"working folder .*/nowhere cannot be entered"):
        spawn([*PYTHON, ""], env=ENV, cwd=tmp_path / "nowhere")


async def test_running_out_of_descriptors_is_a_spawn_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(os.devnull, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 3, hard))
    try:
        with pytest.raises(SpawnError, match="no descriptor is left; raise the limit"):
            spawn([*PYTHON, ""], env=ENV)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_environment_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPDAG_RUN_ID", "outer")
    monkeypatch.setenv("INHERITED", "1")
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = child_environment({"HF_HUB_OFFLINE": "0", "OWN": "2"}, "inner")
    assert env["CAPDAG_RUN_ID"] == "inner"
    assert (env["INHERITED"], env["OWN"], env["HF_HUB_OFFLINE"]) == ("1", "2", "0")
    assert (env["GOMP_SPINCOUNT"], env["ORT_DISABLE_TELEMETRY"], env["DO_NOT_TRACK"]) == ("0", "1", "1")
    assert env["OMP_NUM_THREADS"] == ENGINE_ENVIRONMENT["OMP_NUM_THREADS"]
    assert int(env["OMP_NUM_THREADS"]) >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert child_environment({}, "r")["OMP_NUM_THREADS"] == "7"
    assert child_environment({"OMP_NUM_THREADS": "3"}, "r")["OMP_NUM_THREADS"] == "3"


async def test_a_guarded_child_must_carry_the_run_id() -> None:
    async with open_guardian(new_run_id()) as guardian:
        with assert_no_leaks(), pytest.raises(ValueError, match="CAPDAG_RUN_ID"):
            spawn([*PYTHON, ""], env=ENV, guardian=guardian)


def _hash_until(stop: threading.Event) -> None:
    block = bytes(1 << 20)
    while not stop.is_set():
        hashlib.sha256(block).digest()  # runs without the interpreter's lock, as an engine's threads do


async def test_fifty_spawns_beside_sixteen_busy_threads() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=_hash_until, args=(stop,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    try:
        with assert_no_leaks():
            for _ in range(50):
                with spawned("") as child:
                    with trio.fail_after(30):
                        assert await child.wait_exit() == ExitStatus(code=0)
                    child.reap()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# Exit and reap


async def test_an_exit_is_seen_by_every_waiter_and_not_reaped() -> None:
    seen: list[ExitStatus] = []
    with spawned("import sys; sys.stdin.read(); sys.exit(3)") as child:

        async def wait() -> None:
            seen.append(await child.wait_exit())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert child.exit_status() is None
            assert "running" in repr(child)
            child.close_stdin()
        assert seen == [ExitStatus(code=3)] * 2
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert child.reap() == ExitStatus(code=3)
        assert not psutil.pid_exists(child.pid)
        assert child.reap() == await child.wait_exit() == ExitStatus(code=3)
        assert "exited with status 3" in repr(child)


async def test_an_exit_is_seen_where_no_descriptor_of_a_process_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with spawned("import sys; sys.stdin.read()") as child:
        with trio.move_on_after(0.05):
            await child.wait_exit()
        assert child.exit_status() is None
        child.close_stdin()
        with trio.fail_after(5):
            assert await child.wait_exit() == ExitStatus(code=0)
        child.reap()


@pytest.mark.parametrize("script", [OBEYS_EOF, IGNORES_SIGTERM])
async def test_a_child_is_stopped_where_no_exit_can_be_seen_without_a_reap(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "waitid")
    with spawned(script) as child:
        await read_line(child)
        with trio.fail_after(5):
            status = await child.stop(0.2)
        assert status in (ExitStatus(code=0), ExitStatus(signal=signal.SIGKILL))
        assert not psutil.pid_exists(child.pid)


async def test_a_child_reaped_by_somebody_else_ends_with_unknown_status() -> None:
    with spawned("import sys; sys.stdin.read()") as child:
        child.close_stdin()
        await trio.to_thread.run_sync(os.waitpid, child.pid, 0)
        with trio.fail_after(5):
            assert await child.stop(5) == ExitStatus()


async def test_a_running_child_cannot_be_reaped() -> None:
    with spawned(OBEYS_EOF) as child:
        with pytest.raises(RuntimeError, match=r"is running: stop\(\) it"):
            child.reap()
        await child.stop(5)


async def test_no_signal_is_sent_after_the_reap(monkeypatch: pytest.MonkeyPatch) -> None:
    with spawned("") as child:
        await child.wait_exit()
        child.reap()
        monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("a signal to an id that may be a stranger's"))
        child.kill_group(signal.SIGTERM)
        await child.stop(1)


async def test_the_rest_of_a_group_is_killed_when_its_leader_exits_by_itself() -> None:
    with spawned(LEAVES_GRANDCHILD.format(own_session=False)) as child:
        grandchild = int(await read_line(child))
        child.close_stdin()
        assert await child.wait_exit() == ExitStatus(code=0)
        assert alive(grandchild)
        child.reap()
        await wait_gone(grandchild)
        assert os.read(child.stdout_fd, 1) == b""  # nobody holds the pipe


async def test_closing_is_idempotent_and_wakes_a_reader() -> None:
    with spawned(OBEYS_EOF) as child:
        await read_line(child)
        async with trio.open_nursery() as nursery:

            async def read_on() -> None:
                with pytest.raises(trio.ClosedResourceError), trio.fail_after(5):
                    await trio.lowlevel.wait_readable(child.stdout_fd)

            nursery.start_soon(read_on)
            await trio.testing.wait_all_tasks_blocked()
            child.close_stdout()
        child.close_stdout()
        await child.stop(5)
        child.close()
        child.close()


async def test_a_kill_of_our_own_is_not_blamed_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "memory.events"
    monkeypatch.setattr(process_module, "_oom_kills", OomKills(counter))
    counter.write_text("oom_kill 0\n")
    with spawned(IGNORES_SIGTERM) as ours, spawned(IGNORES_EOF) as the_kernels:
        await read_line(ours)
        counter.write_text("oom_kill 1\n")
        assert await ours.stop(0) == ExitStatus(signal=signal.SIGKILL)
        os.kill(the_kernels.pid, signal.SIGKILL)
        assert (await the_kernels.wait_exit()).oom_killed
        assert (await the_kernels.stop(0)).oom_killed


# Stop, with the misdeeds of children


@pytest.mark.parametrize(
    ("script", "grace", "ends"),
    [
        pytest.param(OBEYS_EOF, 10, ExitStatus(code=0), id="obeys-eof"),
        pytest.param("import sys; print('ready'); sys.exit(1)", 10, ExitStatus(code=1), id="exits-at-once"),
        pytest.param(IGNORES_EOF, 0.3, ExitStatus(signal=signal.SIGTERM), id="ignores-eof"),
        pytest.param(IGNORES_SIGTERM, 0.3, ExitStatus(signal=signal.SIGKILL), id="ignores-sigterm"),
        pytest.param(STOPS_ITSELF, 0.3, ExitStatus(signal=signal.SIGKILL), id="stops-itself"),
        pytest.param(FLOODS_STDERR, 0.3, ExitStatus(signal=signal.SIGTERM), id="floods-stderr"),
    ],
)
async def test_stop_ends_a_child(script: str, grace: float, ends: ExitStatus) -> None:
    with assert_no_leaks(), spawned(script) as child:
        assert await read_line(child) == "ready"
        with trio.fail_after(5):
            assert await child.stop(grace) == ends
        assert not psutil.pid_exists(child.pid)


async def test_stop_ends_a_grandchild_that_holds_stdout() -> None:
    with spawned(LEAVES_GRANDCHILD.format(own_session=False)) as child:
        grandchild = int(await read_line(child))
        with trio.fail_after(5):
            assert await child.stop(10) == ExitStatus(code=0)
        await wait_gone(grandchild)


async def test_a_grandchild_with_its_own_session_ends_with_the_guardian() -> None:
    async with open_guardian(new_run_id()) as guardian:
        script = LEAVES_GRANDCHILD.format(own_session=True)
        child = spawn([*PYTHON, script], env=child_environment({}, guardian.run_id), guardian=guardian)
        grandchild = int(await read_line(child))
        await child.stop(10)
        child.close()
        assert alive(grandchild)
    await wait_gone(grandchild)


async def test_the_guardian_forgets_a_child_that_was_stopped() -> None:
    async with open_guardian(new_run_id()) as guardian:
        env = child_environment({}, guardian.run_id)
        stopped = spawn([*PYTHON, OBEYS_EOF], env=env, guardian=guardian)
        kept = spawn([*PYTHON, OBEYS_EOF], env=env, guardian=guardian)
        await stopped.stop(5)
        first = guardian.pid
        os.kill(first, signal.SIGKILL)
        await wait_gone(first)
        guardian.add_path(Path("/nonexistent/file"))
        told = psutil.Process(guardian.pid).cmdline()[4:]
        assert told == [guardian.run_id, str(kept.pid), "/nonexistent/file"]
        await kept.stop(5)
        stopped.close()
        kept.close()


async def test_two_tasks_may_stop_the_same_child() -> None:
    ends: list[ExitStatus] = []
    with spawned(IGNORES_SIGTERM) as child:
        await read_line(child)

        async def stop(grace: float) -> None:
            ends.append(await child.stop(grace))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop, 0.1)
            nursery.start_soon(stop, 10)
        assert ends == [ExitStatus(signal=signal.SIGKILL)] * 2


async def test_a_child_that_cannot_be_killed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_guardian(new_run_id()) as guardian:
        child = spawn([*PYTHON, IGNORES_EOF], env=child_environment({}, guardian.run_id), guardian=guardian)
        with monkeypatch.context() as patch:
            patch.setattr(process_module, "REAP_LIMIT", 0.1)
            patch.setattr(os, "killpg", lambda *_: None)  # as a process in uninterruptible sleep takes it
            with trio.fail_after(5):
                assert await child.stop(0) == ExitStatus()
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert f"process {child.pid} is still there 0.1 s after SIGKILL" in caplog.text
    with trio.fail_after(5):  # the guardian has kept the group, and kills it
        assert await child.wait_exit() == ExitStatus(signal=signal.SIGKILL)
    child.reap()
    child.close()


class CancelAfterSteps(trio.abc.Instrument):
    """Cancels a scope once a task has been scheduled a number of times, that is at a chosen checkpoint."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, steps: int) -> None:
        self._task, self._scope, self._steps = task, scope, steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            if self._steps == 0:
                trio.lowlevel.current_trio_token().run_sync_soon(self._scope.cancel)
            self._steps -= 1


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        pytest.param(OBEYS_EOF, 0, id="obeys-eof"),  # it may end before the first cancellation comes
        pytest.param(IGNORES_EOF, 1, id="ignores-eof"),
        pytest.param(IGNORES_SIGTERM, 2, id="ignores-sigterm"),
        pytest.param(STOPS_ITSELF, 2, id="stops-itself"),
    ],
)
async def test_stop_cancelled_at_any_checkpoint_leaves_no_child(script: str, waits: int) -> None:
    steps = 0
    cancelled = True
    while cancelled:
        with assert_no_leaks(), spawned(script) as child:
            await read_line(child)
            cancelled = await _stop_cancelled_after(child, steps)
            assert not psutil.pid_exists(child.pid)
        steps += 1
    assert steps > waits  # the last one came too late to disturb the stop


async def _stop_cancelled_after(child: ChildProcess, steps: int) -> bool:
    with trio.fail_after(5), trio.CancelScope() as scope:
        instrument = CancelAfterSteps(trio.lowlevel.current_task(), scope, steps)
        trio.lowlevel.add_instrument(instrument)
        try:
            await child.stop(0.1)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


async def test_stop_in_a_cancelled_scope_kills_at_once() -> None:
    with spawned(IGNORES_SIGTERM) as child:
        await read_line(child)
        with trio.fail_after(5), trio.CancelScope() as scope:
            scope.cancel()
            await child.stop(60)
        assert scope.cancelled_caught
        assert child.exit_status() == ExitStatus(signal=signal.SIGKILL)
        assert not psutil.pid_exists(child.pid)
