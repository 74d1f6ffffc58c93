"""Each case has a cartridge that does one thing wrong, and is the one case that fails it."""

from __future__ import annotations

import trio
import trio.testing

from capdag.conformance import CASES, Report, Verdict, as_text
from tests.conformance.inprocess import check_plain
from tests.conformance.mutants import MUTANTS
from tests.conformance.plain import Plain


def checked(kind: type[Plain]) -> Report:
    return trio.run(check_plain, kind, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_cartridge_that_keeps_every_rule_passes() -> None:
    report = checked(Plain)
    assert not report.of(Verdict.FAIL), as_text(report)
    assert [result.case.id for result in report.of(Verdict.SKIP)] == ["calls"]


def test_every_case_has_its_mutant() -> None:
    assert set(MUTANTS) == {case.id for case in CASES}


def test_a_fault_fails_the_case_meant_for_it_alone() -> None:
    """One test for all: a thousand frames each take a tenth of a second, and a test around them as long again."""
    wrong = {}
    for case, kind in MUTANTS.items():
        report = checked(kind)
        failed = [result.case.id for result in report.of(Verdict.FAIL)]
        if failed != [case]:
            wrong[case] = failed, as_text(report)
    assert not wrong, "\n".join(f"{case}: {failed} failed\n{text}" for case, (failed, text) in wrong.items())
