"""How processes end, in words; and whether the kernel killed them for memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from capdag.transport._exits import ExitStatus, OomKills, find_oom_counter
from tests.transport.children import ROOT


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExitStatus(code=0), "exited with status 0"),
        (ExitStatus(code=1), "exited with status 1"),
        (ExitStatus(signal=signal.SIGKILL), "killed by SIGKILL"),
        (ExitStatus(signal=signal.SIGSEGV), "killed by SIGSEGV"),
        (ExitStatus(signal=40), "killed by signal 40"),
        (ExitStatus(signal=signal.SIGKILL, oom_killed=True), "killed by SIGKILL because memory ran out"),
        (ExitStatus(), "ended with unknown status"),
    ],
)
def test_an_exit_in_words(status: ExitStatus, words: str) -> None:
    assert status.describe() == words


@pytest.mark.parametrize(
    ("membership", "mounted", "found"),
    [
        ("0::/user/app", "sys/fs/cgroup/user/app/memory.events", True),
        ("0::/seen/from/outside", "sys/fs/cgroup/memory.events", True),
        ("5:devices:/\n4:memory:/app\n0::/", "sys/fs/cgroup/memory/app/memory.oom_control", True),
        ("4:cpu,memory:/outside", "sys/fs/cgroup/memory/memory.oom_control", True),
        ("5:devices:/app", "sys/fs/cgroup/memory/memory.oom_control", False),
        ("0::/", "sys/fs/cgroup/other", False),
    ],
)
def test_the_counter_of_a_control_group_is_found(tmp_path: Path, membership: str, mounted: str, found: bool) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership + "\n")
    counter = tmp_path / mounted
    counter.parent.mkdir(parents=True)
    counter.touch()
    assert find_oom_counter(tmp_path) == (counter if found else None)


def test_no_control_groups_no_counter(tmp_path: Path) -> None:
    assert find_oom_counter(tmp_path) is None
    assert OomKills(None).count() == 0
    assert not OomKills(None).claim(0)
    assert OomKills(tmp_path / "gone").count() == 0


def test_each_kill_is_blamed_on_one_child(tmp_path: Path) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 9\n")
    kills = OomKills(counter)
    at_spawn = kills.count()
    assert at_spawn == 2
    assert not kills.claim(at_spawn)
    counter.write_text("oom_kill 4\n")
    assert kills.claim(at_spawn)
    assert kills.claim(at_spawn)
    assert not kills.claim(at_spawn)
    counter.write_text("oom_kill 6\n")
    assert not kills.claim(6)  # spawned after both
    counter.write_text("oom_kill 7\n")
    assert kills.claim(6)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group of 64 MiB, where this user may make one."""
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    base, limits = (
        (version_1, ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"])
        if version_1.is_dir()
        else (version_2, ["memory.max", "memory.swap.max"])
    )
    group = base / f"capdag-test-{os.getpid()}"
    try:
        group.mkdir()
        for limit in limits:
            if (group / limit).exists():
                (group / limit).write_text("0" if "swap.max" in limit else str(64 << 20))
        assert (group / limits[0]).exists()
    except (OSError, AssertionError) as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no memory control group can be made here: {error}")
    yield group
    group.rmdir()


HOST = """
import os, pathlib, sys, trio
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from capdag.transport.process import spawn

async def main():
    for source in ("x = bytearray(1 << 30)", "import os; os.kill(os.getpid(), 9)"):
        child = spawn([sys.executable, "-I", "-S", "-c", source], env=os.environ)
        await child.wait_exit()
        print(child.reap().describe())
        child.close()

trio.run(main)
"""


def test_a_real_kill_for_memory_is_told_from_another(small_group: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOST, str(small_group)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["killed by SIGKILL because memory ran out", "killed by SIGKILL"], done.stderr
