"""Every input that is kept, through its target; and ten seconds of fuzzing each."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from fuzz.targets import MEMORY_FLOOR, MEMORY_PER_BYTE, NAMES, first_inputs, load

FUZZ = Path(__file__).parents[2] / "fuzz"
SECONDS = 10


def kept(folder: str, name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((FUZZ / folder / name).glob("*"))]


@pytest.mark.parametrize("name", NAMES)
def test_every_input_keeps_the_invariant_in_bounded_memory(name: str) -> None:
    check = load(name).check
    inputs, corpus = first_inputs(name) + kept("crashes", name), kept("corpus", name)
    assert len(inputs) > 10
    assert len(corpus) > 10
    for data in inputs + corpus:
        check(data)
    tracemalloc.start()  # it makes everything ten times slower: of the corpus the longest ones are enough
    try:
        for data in inputs + sorted(corpus, key=len)[-20:]:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            check(data)
            assert tracemalloc.get_traced_memory()[1] - before < MEMORY_FLOOR + MEMORY_PER_BYTE * len(data)
    finally:
        tracemalloc.stop()


def test_a_length_prefix_alone_takes_no_memory() -> None:
    check = load("frames").check
    tracemalloc.start()
    try:
        check(b"\x00\x00\xff\xff" + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 65_535
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed (the fuzz extra)")
def test_ten_seconds_of_fuzzing_each(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz", "--seconds", str(SECONDS), "--crashes", str(tmp_path)]
    done = subprocess.run(command, cwd=FUZZ.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^(\w+) +ok +([\d,]+) executions", done.stdout, re.MULTILINE)
    executions = {name: int(count.replace(",", "")) for name, count in found}
    assert executions.keys() == set(NAMES)
    assert min(executions.values()) > 100
    assert list(tmp_path.iterdir()) == []
