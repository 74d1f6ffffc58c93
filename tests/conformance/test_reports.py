"""How a report looks, and the command `capdag check`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from capdag.cli import main
from capdag.conformance import CASES, Report, Verdict, as_json, as_junit, as_text, choose_cases
from capdag.conformance import Result as CaseResult
from capdag.errors import ConfigError
from tests.misbehave import command, environment

GOOD = ["--only", "hello", "--only", "identity"]


def case_result(name: str, verdict: Verdict, seen: str = "") -> CaseResult:
    return CaseResult(choose_cases([name])[0], verdict, seen, 0.25)


REPORT = Report(
    ["node", "my cartridge.js"],
    "cap:echo",
    [
        case_result("hello", Verdict.PASS),
        case_result("eof", Verdict.FAIL, "it 'stayed' <for ever> & \x00 more"),
        case_result("calls", Verdict.SKIP, "the cartridge made no call"),
    ],
    1.5,
)


def run(*arguments: str, data: bytes = b"") -> Result:
    return CliRunner().invoke(
        main, ["check", *arguments], input=data, prog_name="capdag", env=environment(), catch_exceptions=False
    )


def test_text() -> None:
    text = as_text(REPORT)
    assert re.findall(r"^(\w+) +(\w+) ", text, re.MULTILINE)[:3] == [
        ("pass", "hello"),
        ("fail", "eof"),
        ("skip", "calls"),
    ]
    assert "seen: it 'stayed'" in text
    assert "remedy: when a read of descriptor 0 gives nothing, stop and exit with 0" in text
    assert text.endswith("\nnode 'my cartridge.js': 1 passed, 1 FAILED, 1 skipped in 1.5 s\ndata went by cap:echo\n")
    assert "\x1b" not in text
    assert as_text(REPORT, colour=True).startswith("\x1b[32mpass\x1b[0m  hello")


def test_skips_for_one_reason_are_told_together() -> None:
    results = [CaseResult(case, Verdict.SKIP, "there is no handshake", 0) for case in CASES]
    text = as_text(Report(["x"], "nothing", results, 1))
    assert text.count("there is no handshake") == 1
    assert f"skip  {len(CASES)} cases: there is no handshake" in text
    assert all(case.id in text for case in CASES)


def test_json() -> None:
    read = json.loads(as_json(REPORT))
    assert (read["passed"], read["command"], len(read["results"])) == (False, ["node", "my cartridge.js"], 3)
    assert read["results"][1]["verdict"] == "fail"
    assert read["results"][1]["law"] == "wire.md, Framing"


def test_junit() -> None:
    suite = ElementTree.fromstring(as_junit(REPORT))
    assert suite.attrib == {"name": "capdag check", "tests": "3", "failures": "1", "skipped": "1", "time": "1.500"}
    passed, failed, skipped = suite
    assert (passed.attrib["name"], len(passed)) == ("hello", 0)
    assert "it 'stayed' <for ever> & \\x00 more" in failed[0].attrib["message"]
    assert skipped[0].attrib["message"] == "the cartridge made no call"


def test_a_result_by_its_case() -> None:
    assert REPORT["eof"].verdict is Verdict.FAIL
    assert not REPORT.passed
    with pytest.raises(KeyError):
        REPORT["identity"]


def test_ids_are_unique_and_laws_exist() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    wire = (Path(__file__).parents[2] / "protocol-spec" / "wire.md").read_text()
    for case in CASES:
        pages = re.findall(r"[\w-]+\.md", case.law)
        assert pages, case.id
        for law in re.findall(r"\bL\d+\b", case.law):
            assert f"**{law}**" in wire, case.id
        for page in pages:
            assert (Path(__file__).parents[2] / "protocol-spec" / page).exists(), case.id


def test_an_unknown_case_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no case 'helo': did you mean 'hello'"):
        choose_cases(["helo"])
    result = run("--skip", "zzz", "x")
    assert (result.exit_code, result.stderr) == (2, "Error: there is no case 'zzz'; --list shows them\n")


def test_only_and_skip() -> None:
    assert [case.id for case in choose_cases(["identity", "hello"])] == ["hello", "identity"]
    assert [case.id for case in choose_cases(["identity", "hello"], ["hello"])] == ["identity"]
    assert len(choose_cases(skip=["hello"])) == len(CASES) - 1


def test_the_command_passes_and_writes_every_kind_of_report(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    result = run(*GOOD, "--json", "--junit", str(file), *command("Nothing"))
    assert result.exit_code == 0, result.output
    assert [one["verdict"] for one in json.loads(result.stdout)["results"]] == ["pass", "pass"]
    assert ElementTree.parse(file).getroot().attrib["tests"] == "2"


def test_the_command_fails() -> None:
    result = run(*GOOD, *command("WrongIdentity"))
    assert result.exit_code == 1
    assert "fail  identity" in result.stdout
    assert "the identity answer is not the nonce that was sent" in result.stdout


def test_what_cannot_be_started_has_an_exit_code_of_its_own() -> None:
    result = run("no-such-cartridge")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("Error: cannot start no-such-cartridge: there is no program")


def test_a_list_of_cases() -> None:
    result = run("--list", "--only", "eof")
    assert result.stdout.startswith(
        "eof  the end of stdin ends the cartridge within 2 s, with status 0  [wire.md, Framing]"
    )
    assert len(run("--list").stdout.splitlines()) == len(CASES)


def test_wrong_use() -> None:
    assert "say what starts the cartridge" in run().stderr
    assert run().exit_code == 2
    assert "cannot read nowhere.json: No such file" in run("--input", "@nowhere.json", "x").stderr
    assert run("--timeout", "0", "x").exit_code == 2


def test_options_after_the_command_are_the_cartridge_s(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f"import sys; open({str(seen)!r}, 'w').write(' '.join(sys.argv[1:]))"
    run("--only", "hello", sys.executable, "-c", script, "--json", "--help")
    assert seen.read_text() == "--json --help"


def test_a_cap_and_an_input(tmp_path: Path) -> None:
    echo = [sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main"]
    result = run("--only", "worker", "--cap", "count", "--input", "-", *echo, data=b"many")
    assert result.exit_code == 0
    assert "skip  worker" in result.stdout
    assert "need a whole number from 0 on, not 'many'" in result.stdout
    file = tmp_path / "number"
    file.write_bytes(b"5")
    assert "pass  worker" in run("--only", "worker", "--cap", "count", "--input", f"@{file}", *echo).stdout
    wrong = run("--only", "worker", "--cap", "nonsense", *echo)
    assert wrong.exit_code == 2
    assert "the cartridge has no cap 'nonsense'; it has cap:echo;in=media:octets;out=media:octets, cap:" in wrong.stderr
