"""What others have written acts on no terminal, passes for no line of ours, and fills no screen."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from capdag.cli._saying import LogLine, say
from capdag.printable import LONGEST_LINE, MOST_LINES, paragraph, printable, printable_json, printable_lines

HOSTILE = "\x1b[2J\r\x07\x9b31m\u202eevil\u2028\ud800\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü\ttext", "plain ü\ttext"),
        (HOSTILE, r"\x1b[2J\r\x07\x9b31m\u202eevil\u2028\ud800\n"),
        ("12345678", "12345…"),
        ("\n" * 8, r"\n\n\n\n\n…"),
    ],
)
def test_a_line_is_one_line_and_bounded(text: str, shown: str) -> None:
    assert printable(text, 5 if len(text) == 8 else None) == shown


def test_lines_stay_lines() -> None:
    assert printable_lines("a\x1b\rb\r\nc\n") == "a\\x1b\nb\nc\n"
    assert printable_lines("abc\nabcd", 3) == "abc\nabc…"
    assert printable_lines("") == ""


def test_a_paragraph_is_bounded_and_its_lines_cannot_be_taken_for_others() -> None:
    assert paragraph("one\nError: two") == "one\n    Error: two"
    assert paragraph("x" * 5000) == "x" * LONGEST_LINE + "…"
    lines = paragraph("".join(f"{number}\x1b\n" for number in range(3000))).split("\n    ")
    assert len(lines) == MOST_LINES + 1
    assert (lines[0], lines[10], lines[-1]) == (r"0\x1b", "… 2960 lines are left out …", r"2999\x1b")
    assert paragraph("") == ""


def test_json_stays_json() -> None:
    value = {"ü\x9b": [HOSTILE, "\U000e0001"]}
    text = printable_json(value, indent=1)
    assert json.loads(text) == value
    assert "ü" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_what_the_command_says_and_logs_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"caps:\n{HOSTILE}")
    assert capsys.readouterr().out.startswith("caps:\n\\x1b[2J\n\\x07\\x9b31m")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("host", logging.ERROR, "", 0, "died: %s", (HOSTILE,), sys.exc_info())
    first, *rest = LogLine("%(name)s: %(message)s").format(record).split("\n")
    assert first == r"host: died: \x1b[2J"
    assert rest[0] == r"    \x07\x9b31m\u202eevil"
    assert all(line.isprintable() for line in rest)
