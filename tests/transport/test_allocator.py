"""Freed blocks are kept: passing large frames on costs no page faults once the process has grown."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_COUNT = """
import resource, sys
from capdag.transport.allocator import keep_freed_blocks
if sys.argv[1] == "keep":
    keep_freed_blocks()
data = bytes(1 << 18)
for _ in range(10):
    held = [bytearray(data) for _ in range(4)]
    del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    held = [bytearray(data) for _ in range(4)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    # Left to itself glibc adapts to what is freed, now and then well enough: here it is told not to.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    answer = subprocess.run([sys.executable, "-c", _COUNT, how], capture_output=True, text=True, check=True, env=env)
    return int(answer.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is tuned")
def test_blocks_as_large_as_a_frame_are_reused() -> None:
    assert page_faults("keep") * 5 < page_faults("leave")
