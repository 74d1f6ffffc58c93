# ruff: noqa: T201 - a command prints
"""`python -m fuzz [--seconds N] [--jobs N] [--keep] [TARGET …]`: run targets and say what was run and found.

`--keep` adds inputs that reach new code to `fuzz/corpus`. An input that breaks an invariant is written to
`fuzz/crashes/new`, and the command fails: fix it, and move the file to `fuzz/crashes/TARGET`, where the tests take it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .targets import LONGEST, NAMES, first_inputs

HERE = Path(__file__).parent

MEMORY_MB = 1024
"""What the whole process may take, atheris and the growing corpus included; the bound of one input is in `targets`."""

INPUT_SECONDS = 5
"""An input that takes longer is a hang."""


class Run(NamedTuple):
    """One target's run. `corpus` counts inputs, `coverage` the edges they reach."""

    target: str
    executions: int
    coverage: int
    corpus: int
    corpus_bytes: str
    failed: bool
    output: str


def _launcher(target: str, folder: Path) -> Path:
    """Write the program that fuzzes a target."""
    file = folder / "launch"
    command = shlex.join([sys.executable, "-m", "fuzz.engine", str(file), target])
    file.write_text(f'#!/bin/sh\ncd {shlex.quote(str(HERE.parent))} && exec {command} "$@"\n')
    file.chmod(0o700)
    return file


def _fuzz(launcher: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [launcher, f"-max_len={LONGEST}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False,
    )  # fmt: skip


def run(target: str, seconds: int, crashes: Path, *, keep: bool) -> Run:
    """Fuzz one target for so long; what breaks it is written to a file of `crashes`."""
    corpus = HERE / "corpus" / target
    known = [str(folder) for folder in (corpus, HERE / "crashes" / target) if folder.is_dir()]
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-") as work:
        grown, first, launcher = Path(work, "grown"), Path(work, "seeds"), _launcher(target, Path(work))
        grown.mkdir()
        first.mkdir()
        for number, seed in enumerate(first_inputs(target)):
            (first / f"{number:04}").write_bytes(seed)
        done = _fuzz(
            launcher, f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={INPUT_SECONDS}",
            f"-artifact_prefix={crashes / target}-", "-print_final_stats=1", str(grown), str(first), *known,
        )  # fmt: skip
        if keep and done.returncode == 0:
            _keep(launcher, corpus, first, grown)
    return _told(target, done)


def _keep(launcher: Path, corpus: Path, first: Path, grown: Path) -> None:
    """Make the corpus the least that reaches, with the seeds, all that is reached now."""
    merged = grown.parent / "merged"
    shutil.copytree(first, merged)
    corpus.mkdir(parents=True, exist_ok=True)
    _fuzz(launcher, "-merge=1", str(merged), str(corpus), str(grown))
    shutil.rmtree(corpus)
    corpus.mkdir()
    for found in merged.iterdir():
        if not (first / found.name).exists():
            shutil.copy(found, corpus)


def _told(target: str, done: subprocess.CompletedProcess[str]) -> Run:
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", done.stdout)
    covered = re.findall(r"cov: (\d+) .*?corp: (\d+)/(\S+)", done.stdout)
    coverage, inputs, size = covered[-1] if covered else ("0", "0", "0b")
    return Run(
        target, int(executions[-1]) if executions else 0, int(coverage), int(inputs), size, done.returncode != 0,
        done.stdout,
    )  # fmt: skip


def main() -> int:
    """Run what the command line names; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz what reads untrusted bytes.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(NAMES)}; all by default")
    parser.add_argument("--seconds", type=int, default=3600, help="for each target (default: an hour)")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="targets at a time (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new code to fuzz/corpus")
    parser.add_argument("--crashes", type=Path, default=HERE / "crashes" / "new", help="folder for what was found")
    options = parser.parse_args()
    options.crashes.mkdir(parents=True, exist_ok=True)
    unknown = sorted(set(options.targets) - set(NAMES))
    if unknown:
        parser.error(f"no target {unknown[0]!r}: choose from {', '.join(NAMES)}")
    with ThreadPoolExecutor(options.jobs) as pool:
        chosen = options.targets or NAMES
        runs = list(pool.map(lambda name: run(name, options.seconds, options.crashes, keep=options.keep), chosen))
    for one in runs:
        verdict = "FAILED" if one.failed else "ok"
        print(
            f"{one.target:<10} {verdict:<7} {one.executions:>10,} executions   {one.coverage:>5,} edges   "
            f"{one.corpus:>5,} inputs, {one.corpus_bytes}"
        )
        if one.failed:
            print(one.output)
    return int(any(one.failed for one in runs))


if __name__ == "__main__":
    sys.exit(main())
