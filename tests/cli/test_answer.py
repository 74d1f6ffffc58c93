"""How progress looks where there is no terminal."""

from __future__ import annotations

import io
import itertools

from capdag.cli._answer import Sidelines
from capdag.client import Logged
from capdag.wire import LogRecord


def test_progress_is_a_line_a_second_and_the_last_one() -> None:
    stream, ticks = io.StringIO(), itertools.count()
    sidelines = Sidelines(stream, clock=lambda: next(ticks) / 1000)
    sidelines.show(Logged(LogRecord("info", f"{step}", step / 2000)) for step in range(2001))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "progress 0%: 0"
    assert lines[-1] == "progress 100%: 2000"
    assert 3 <= len(lines) <= 5


def test_messages_are_never_held_back() -> None:
    stream = io.StringIO()
    Sidelines(stream, clock=lambda: 0.0).show(Logged(LogRecord("warn", f"{step}", None)) for step in range(5))
    assert stream.getvalue() == "".join(f"warn: {step}\n" for step in range(5))
