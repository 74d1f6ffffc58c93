"""What a check has found, and how it looks."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import msgspec

from capdag.printable import printable, printable_json, printable_lines

from ._case import Case, Verdict

_COLOURS = {Verdict.PASS: "32", Verdict.FAIL: "31", Verdict.SKIP: "33"}
_LONGEST = 2000

_INDENT = " " * 6

_FEW = 5
"""More cases than these that are skipped for one reason are told together."""


class Result(NamedTuple):
    """How one case ended. `seen` says what was seen where it failed, and why where it was skipped."""

    case: Case
    verdict: Verdict
    seen: str
    seconds: float

    @property
    def message(self) -> str:
        """What was expected, what was seen, and the remedy; empty for a case that passed."""
        if self.verdict is Verdict.PASS:
            return ""
        seen = self.seen if len(self.seen) <= _LONGEST else self.seen[:_LONGEST] + "…"
        if self.verdict is Verdict.SKIP:
            return seen
        return f"expected: {self.case.title}\nseen: {seen}\nremedy: {self.case.remedy}"


class Report(msgspec.Struct, frozen=True):
    """Every case that was asked for, in order. `carrier` is the cap that carried the data."""

    command: Sequence[str]
    carrier: str
    results: Sequence[Result]
    seconds: float

    @property
    def passed(self) -> bool:
        """True if no case failed."""
        return not self.of(Verdict.FAIL)

    def of(self, verdict: Verdict) -> list[Result]:
        """Return the results with this verdict."""
        return [result for result in self.results if result.verdict is verdict]

    def __getitem__(self, case_id: str) -> Result:
        """Return the result of a case by its id. Raises KeyError."""
        for result in self.results:
            if result.case.id == case_id:
                return result
        raise KeyError(case_id)


def as_text(report: Report, *, colour: bool = False) -> str:
    """Return the report for people: a line a case, and under each that did not pass why."""
    return "\n".join(_lines(report, colour)) + "\n"


def _lines(report: Report, colour: bool) -> Iterator[str]:
    width = max((len(result.case.id) for result in report.results), default=0)
    reasons = Counter(result.seen for result in report.of(Verdict.SKIP))
    together: dict[str, list[str]] = {}
    for result in report.results:
        if result.verdict is Verdict.SKIP and reasons[result.seen] > _FEW:
            together.setdefault(result.seen, []).append(result.case.id)
            continue
        yield f"{_word(result.verdict, colour)}  {result.case.id:{width}}  {result.case.title}  [{result.case.law}]"
        for line in result.message.splitlines():
            if not line.startswith("expected: "):  # the title says it
                yield f"{_INDENT}{'':{width}}  {printable(line, _LONGEST)}"
    for reason, names in together.items():
        yield f"{_word(Verdict.SKIP, colour)}  {len(names)} cases: {printable(reason, _LONGEST)}"
        yield from textwrap.wrap(
            ", ".join(names), 110, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
        )
    counts = Counter(result.verdict for result in report.results)
    summary = ", ".join(f"{counts[verdict]} {words}" for verdict, words in _WORDS.items() if counts[verdict])
    yield ""
    yield f"{printable(shlex.join(report.command))}: {summary or 'no case'} in {report.seconds:.1f} s"
    yield f"data went by {printable(report.carrier, _LONGEST)}"


def _word(verdict: Verdict, colour: bool) -> str:
    return f"\x1b[{_COLOURS[verdict]}m{verdict}\x1b[0m" if colour else str(verdict)


_WORDS = {Verdict.PASS: "passed", Verdict.FAIL: "FAILED", Verdict.SKIP: "skipped"}


def as_json(report: Report) -> str:
    """Return the report for programs."""
    results = [
        {
            "id": result.case.id, "title": result.case.title, "law": result.case.law, "verdict": result.verdict.value,
            "seen": result.seen, "remedy": result.case.remedy, "seconds": round(result.seconds, 3),
        }
        for result in report.results
    ]  # fmt: skip
    whole = {
        "command": list(report.command), "passed": report.passed, "carrier": report.carrier,
        "seconds": round(report.seconds, 3), "results": results,
    }  # fmt: skip
    return printable_json(whole, indent=2) + "\n"


def as_junit(report: Report) -> str:
    """Return the report as the XML that CI servers read."""
    return "\n".join(_junit_lines(report)) + "\n"


def _junit_lines(report: Report) -> Iterator[str]:
    failed, skipped = len(report.of(Verdict.FAIL)), len(report.of(Verdict.SKIP))
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield (
        f'<testsuite name="capdag check" tests="{len(report.results)}" failures="{failed}" skipped="{skipped}" '
        f'time="{report.seconds:.3f}">'
    )
    for result in report.results:
        head = f'  <testcase classname="capdag.check" name={_quoted(result.case.id)} time="{result.seconds:.3f}"'
        if result.verdict is Verdict.PASS:
            yield f"{head}/>"
        else:
            tag = "failure" if result.verdict is Verdict.FAIL else "skipped"
            yield f"{head}><{tag} message={_quoted(result.message)}/></testcase>"
    yield "</testsuite>"


def _quoted(text: str) -> str:
    """Quote an attribute's value. What XML cannot hold at all is shown as an escape."""
    return quoteattr(printable_lines(text), {"\n": "&#10;", "\t": "&#9;"})
