"""Run files and the sweep of what dead hosts left."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
import trio

from capdag.transport import runs
from capdag.transport.guardian import new_run_id, open_guardian
from capdag.transport.process import child_environment, spawn
from capdag.transport.runs import sweep_stale_runs, write_run_file
from tests.leaks import alive
from tests.transport.children import (
    IGNORES_EOF,
    LEAVES_GRANDCHILD,
    PYTHON,
    STOPS_ITSELF,
    running_host,
    start,
    wait_gone,
)


def bound_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


async def test_what_a_host_left_that_died_with_its_guardian_is_swept(tmp_path: Path) -> None:
    left_socket = bound_socket(tmp_path / "host.sock")
    order = {
        "children": [IGNORES_EOF, STOPS_ITSELF, LEAVES_GRANDCHILD.format(own_session=True)],
        "run_dir": str(tmp_path / "run"),
        "sockets": [str(left_socket), str(tmp_path / "never bound")],
    }
    async with running_host(**order) as (host, said):
        assert sweep_stale_runs(tmp_path / "run") == []  # it lives
        os.kill(said["guardian"], signal.SIGKILL)
        host.kill()  # and stays a zombie for now, which is as dead
        await trio.to_thread.run_sync(lambda: os.waitid(os.P_PID, host.pid, os.WEXITED | os.WNOWAIT))
        stopped_at_eof = said["left"].pop(2)  # the parent of the grandchild
        await wait_gone(stopped_at_eof)
        assert all(map(alive, said["left"]))
        [swept] = sweep_stale_runs(tmp_path / "run")
        await wait_gone(*said["left"])
    assert (swept.host_pid, swept.run_id) == (host.pid, said["run_id"])
    assert swept.killed == sorted(said["left"])
    assert swept.removed == [left_socket]
    assert f"3 processes ended {swept.killed}, 1 sockets removed" in swept.describe()
    assert not left_socket.exists()
    assert list((tmp_path / "run").iterdir()) == []
    assert sweep_stale_runs(tmp_path / "run") == []


async def test_a_stuck_guardian_of_a_dead_host_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "GUARDIAN_PATIENCE", 0.1)
    async with running_host(children=[IGNORES_EOF], run_dir=str(tmp_path), sockets=[]) as (host, said):
        os.kill(said["guardian"], signal.SIGSTOP)
        host.kill()
        await wait_gone(host.pid)
        [swept] = sweep_stale_runs(tmp_path)
        await wait_gone(*said["left"], said["guardian"])
    assert swept.killed == said["left"]


async def test_a_run_file_lives_as_long_as_its_host(tmp_path: Path) -> None:
    async with open_guardian(new_run_id()) as guardian:
        file = write_run_file(tmp_path / "made" / "run", guardian, [tmp_path / "a.sock"])
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert json.loads(file.read_text())["host_pid"] == os.getpid()
        assert sweep_stale_runs(file.parent) == []
        assert list(file.parent.iterdir()) == [file]
    assert not file.exists()


@pytest.mark.parametrize("changes", [{"host_start": 1}, {"boot": "another"}, {"host_pid": 2**22 + 1}])
async def test_a_host_is_known_by_boot_and_start_time_too(tmp_path: Path, changes: dict[str, object]) -> None:
    """The process id alone may be a stranger's, who is not killed; nor is a process of another run."""
    async with open_guardian(new_run_id()) as guardian:
        child = spawn([*PYTHON, IGNORES_EOF], env=child_environment({}, guardian.run_id), guardian=guardian)
        file = write_run_file(tmp_path, guardian)
        edit(file, run_id="another-run", **changes)
        [swept] = sweep_stale_runs(tmp_path)
        assert (swept.killed, swept.removed) == ([], [])
        assert not file.exists()
        assert alive(child.pid)
        await child.stop(0)
        child.close()


async def test_only_sockets_are_removed(tmp_path: Path) -> None:
    document, folder = tmp_path / "document", tmp_path / "folder"
    document.touch()
    folder.mkdir()
    async with open_guardian(new_run_id()) as guardian:
        file = write_run_file(tmp_path, guardian, [document, folder])
        edit(file, run_id="another-run", host_start=1)
        [swept] = sweep_stale_runs(tmp_path)
    assert swept.removed == []
    assert document.exists()
    assert folder.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host_pid": "x"}', b"\xff\xfe", b'{"unknown": 1}'])
def test_a_file_that_is_no_run_file_is_left_alone(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "run-x.json"
    file.write_bytes(content)
    assert sweep_stale_runs(tmp_path) == []
    assert file.exists()
    assert f"run file {file} cannot be read" in caplog.text


def test_a_folder_that_is_not_there_holds_no_runs(tmp_path: Path) -> None:
    assert sweep_stale_runs(tmp_path / "none") == []


def test_a_process_of_this_user_without_the_run_id_is_left(tmp_path: Path) -> None:
    bystander = start([*PYTHON, IGNORES_EOF])
    run = {"host_pid": bystander.pid, "host_start": 1, "boot": runs._boot(), "run_id": "gone", "sockets": []}
    (tmp_path / "run-gone.json").write_text(json.dumps(run))
    [swept] = sweep_stale_runs(tmp_path)
    assert swept.killed == []
    assert bystander.poll() is None
    with bystander:
        bystander.kill()
