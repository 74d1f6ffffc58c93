"""How an answer and its progress look: on a terminal, and where there is none."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest

from capdag.cartridge.terminal import (
    MESSAGES_A_SECOND,
    AnswerPrinter,
    ScreenText,
    Sidelines,
    render_failure,
    render_raw,
    render_value,
)
from capdag.errors import AttributionClass, RequestFailedError
from capdag.wire import LogRecord, StreamHead

SCALAR = StreamHead("s", "media:text", is_sequence=False, unbounded=False, output=None, meta={})
ITEMS = SCALAR._replace(is_sequence=True)
NAMED = SCALAR._replace(output="media:notes")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_a_second_and_the_last_one() -> None:
    stream, ticks = io.StringIO(), itertools.count()
    sidelines = Sidelines(stream, clock=lambda: next(ticks) / 1000)
    for step in range(2001):
        sidelines.show(LogRecord("info", f"{step}", step / 2000))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "progress 0%: 0"
    assert lines[-1] == "progress 100%: 2000"
    assert 3 <= len(lines) <= 5


def test_messages_are_never_held_back() -> None:
    stream = io.StringIO()
    sidelines = Sidelines(stream, clock=lambda: 0.0)
    for step in range(5):
        sidelines.show(LogRecord("warn", f"{step}", None))
    assert stream.getvalue() == "".join(f"warn: {step}\n" for step in range(5))


def test_a_terminal_has_a_bar_that_is_taken_away_for_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    sidelines = Sidelines(stream)
    sidelines.show(LogRecord("progress", "half", 0.5))
    assert stream.getvalue() == "\r\x1b[K[" + "#" * 15 + "-" * 15 + "]  50% half"
    sidelines.show(LogRecord("warn", "careful"))
    assert stream.getvalue().endswith("half\r\x1b[Kwarn: careful\n")
    sidelines.show(LogRecord("progress", "long\nand " * 20, 0.5))
    assert stream.getvalue().split("\x1b[K")[-1] == "[###############---------------]  50% long and long and lon"
    sidelines.show(LogRecord("progress", "\u5c71" * 40, 0.5))
    assert stream.getvalue().split("\x1b[K")[-1] == "[###############---------------]  50% " + "\u5c71" * 10
    sidelines.clear()
    before = stream.getvalue()
    sidelines.clear()
    assert stream.getvalue() == before


@pytest.mark.parametrize(
    ("stream", "value", "meta", "shown"),
    [
        (SCALAR, b"\x00\xff", {}, b"\x00\xff"),
        (SCALAR, "ü", {}, "ü".encode()),
        (SCALAR, 1.5, {}, b"1.5\n"),
        (ITEMS, "ü", {"index": 1}, '"ü"\n'.encode()),
        (ITEMS, {"a": b"\x01", 2: None}, {}, b'{"a": {"base64": "AQ=="}, "2": null}\n'),
        (NAMED, 1, {"m": 2}, b'{"output": "media:notes", "media": "media:text", "value": 1, "meta": {"m": 2}}\n'),
    ],
)  # fmt: skip
def test_values_are_bytes_as_they_are_and_items_lines_of_json(
    stream: StreamHead, value: Any, meta: Mapping[str, Any], shown: bytes
) -> None:
    assert render_value(stream, value, meta, as_json=False) == shown


def test_as_json_every_value_says_where_it_belongs() -> None:
    assert render_value(SCALAR, 0, {}, as_json=True) == b'{"media": "media:text", "value": 0}\n'


def test_raw_items_have_nothing_between_them() -> None:
    assert [render_raw(item) for item in (b"a", "b", [1])] == [b"a", b"b", b"[1]\n"]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"plain\tt\xc3\xbc\n"], "plain\ttü\n"),
        ([b"\x1b[2Jgone\x07"], r"\x1b[2Jgone\x07"),
        ([b"a\xc3", b"\xbc\xff", b"\xe2\x82"], r"aü\xff\xe2\x82"),
        ([b"50%\r100%\r", b"\nend"], "50%\n100%\nend"),
        (["\x9b31m\u202e".encode()], r"\x9b31m\u202e"),
    ],
)
def test_a_terminal_gets_text_that_cannot_act_on_it(pieces: list[bytes], shown: str) -> None:
    screen = ScreenText()
    assert b"".join([*map(screen.show, pieces), screen.end()]).decode() == shown


def test_a_line_of_json_stands_by_itself() -> None:
    printer = AnswerPrinter(on_terminal=False)
    shown = [(SCALAR, "a"), (SCALAR, b""), (SCALAR, 5), (SCALAR, b"b\n"), (SCALAR, 6), (SCALAR, "c"), (NAMED, "n")]
    printed = b"".join(printer.show(stream, value, {}) for stream, value in shown) + printer.end()
    assert printed == b'a\n5\nb\n6\nc\n{"output": "media:notes", "media": "media:text", "value": "n"}\n'
    raw = AnswerPrinter(on_terminal=True, raw=True)
    assert raw.show(SCALAR, "a", {}) + raw.show(SCALAR, 5, {}) + raw.show(SCALAR, b"\xc3", {}) == b"a5\n"
    assert raw.end() == rb"\xc3"


def test_json_lines_hold_what_json_has_and_nothing_that_acts_on_a_terminal() -> None:
    line = render_value(ITEMS, ["\x9b\x7f\n", math.nan, math.inf], {}, as_json=False)
    assert line == b'["\\u009b\\u007f\\n", "nan", "inf"]\n'


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_messages_are_escaped_and_bounded(stream: io.StringIO) -> None:
    sidelines = Sidelines(stream, clock=lambda: 0.0)
    sidelines.show(LogRecord("w\x1b" * 50, "red\x1b[2J\r\nError: forged" + "\nx" * 500))
    text = stream.getvalue()
    assert text.startswith(r"w\x1b")
    assert r"red\x1b[2J" + "\n    Error: forged\n" in text
    assert len(text.splitlines()) < 50
    sidelines.show(LogRecord("progress", "\x1b[2J" + "x" * 10_000, 1.0))
    assert r"\x1b[2J" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert len(stream.getvalue()) < 5000


def test_a_flood_of_messages_is_counted() -> None:
    stream, now = io.StringIO(), 0.0
    sidelines = Sidelines(stream, clock=lambda: now)
    for _ in range(MESSAGES_A_SECOND + 5):
        sidelines.show(LogRecord("info", "x"))
    now = 1.0
    sidelines.show(LogRecord("info", "y"))
    lines = stream.getvalue().splitlines()
    assert lines[-2:] == [f"(5 more messages; {MESSAGES_A_SECOND} a second are shown)", "info: y"]
    for _ in range(MESSAGES_A_SECOND):
        sidelines.show(LogRecord("info", "x"))
    sidelines.end()
    assert stream.getvalue().endswith(f"(1 more messages; {MESSAGES_A_SECOND} a second are shown)\n")


def test_a_failure_is_escaped_and_bounded() -> None:
    detail = {f"{number}\x1b{'k' * 100}": "m\x1b\n" * 3000 for number in range(50)}
    error = RequestFailedError("X" * 5000, AttributionClass.INPUT, "m\x1b[2J\nError: forged\n" * 3000, detail)
    text = render_failure(error)
    assert text.startswith("X" * 64 + "… (input): m\\x1b[2J\n    Error: forged\n")
    assert text.endswith("\n  (the request is wrong: change it)")
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) < 400
