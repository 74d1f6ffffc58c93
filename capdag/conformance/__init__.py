"""Any cartridge, in any language, held to the protocol: `capdag check` as a library.

One test a case, with pytest:

    REPORT = check(["node", "echo.js"])

    @pytest.mark.parametrize("result", REPORT.results, ids=lambda result: result.case.id)
    def test_conformance(result):
        assert result.verdict is not Verdict.FAIL, result.message
"""

from ._case import Case, Verdict
from ._report import Report, Result, as_json, as_junit, as_text
from ._run import check, choose_cases, run_cases, run_command
from ._settings import Settings
from .cases import CASES

__all__ = [
    "CASES", "Case", "Report", "Result", "Settings", "Verdict", "as_json", "as_junit", "as_text", "check",
    "choose_cases", "run_cases", "run_command",
]  # fmt: skip
