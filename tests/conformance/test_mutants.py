"""Each case has a cartridge that does one thing wrong, and is the one case that fails it."""

from __future__ import annotations

from collections.abc import Sequence

from capdag.conformance import CASES, Case, Verdict, as_text
from capdag.conformance.cases import cancel, credit, ending, errors, handshake, health, manifest, streams
from tests.conformance.inprocess import check_plain
from tests.conformance.mutants import MUTANTS
from tests.conformance.plain import Plain

_PAGES = (
    handshake.CASES + manifest.CASES, streams.CASES, credit.CASES + cancel.CASES, errors.CASES,
    health.CASES + ending.CASES,
)  # fmt: skip

_WATCHING = (
    "stdout", "forbidden-frames", "answer", "outputs", "stream-order", "chunk-index", "chunk-count", "checksum",
    "payload", "seq", "ids", "one-terminal", "after-terminal", "end-meta", "err-meta", "log-meta", "credit-excess",
    "credit-form",
)  # fmt: skip
"""Cases that judge every answer."""


def tried(mutant: str) -> Sequence[Case]:
    """Return the cases of the mutant's page, and those that watch. `python -m tests.conformance` tries each mutant with
    every case, which takes twice as long."""
    page = next(page for page in _PAGES if mutant in [case.id for case in page])
    return [case for case in CASES if case in page or case.id in _WATCHING]


def test_a_cartridge_that_keeps_every_rule_passes() -> None:
    report = check_plain(Plain)
    assert not report.of(Verdict.FAIL), as_text(report)
    assert [result.case.id for result in report.of(Verdict.SKIP)] == ["calls"]


def test_every_case_has_its_mutant() -> None:
    assert set(MUTANTS) == {case.id for case in CASES}


def test_a_fault_fails_the_case_meant_for_it_alone() -> None:
    """One test for all: what surrounds a test takes as long as the check of a mutant."""
    wrong = {}
    for mutant, kind in MUTANTS.items():
        report = check_plain(kind, tried(mutant))
        failed = [result.case.id for result in report.of(Verdict.FAIL)]
        if failed != [mutant]:
            wrong[mutant] = failed, as_text(report)
    assert not wrong, "\n".join(f"{mutant}: {failed} failed\n{text}" for mutant, (failed, text) in wrong.items())
