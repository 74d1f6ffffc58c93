"""What an author gets wrong in a handler costs that request alone, which ends with one ERR that says what was wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import count

import pytest

from capdag.cartridge._requests import RequestBase
from capdag.errors import LocalProtocolError
from capdag.wire import USER_CANCEL, FrameType, FrameView, LogRecord, cancel_frame
from tests.cartridge import mistakes_stub as stub
from tests.cartridge.driver import Driver, cartridge, whole_request
from tests.cartridge.mistakes_stub import cap_of, exit_on_cancel, fail, fail_async, stray

COMMAND = (sys.executable, "-m", "capdag.cartridge", "tests.cartridge.mistakes_stub")
IDS = count(100)


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    """Return the cartridge, which outlives every mistake."""
    with cartridge(COMMAND) as driver:
        driver.attach()
        yield driver
        assert driver.close() == 0


def ask(driver: Driver, handler: object, value: str = "x") -> FrameView:
    """Ask one handler, and return the one terminal."""
    rid = next(IDS)
    found = driver.ask(rid, cap_of(handler), "media:text", value)  # type: ignore[arg-type]
    assert driver.heartbeat(next(IDS)).type is FrameType.HEARTBEAT
    return found


FAILURES = {
    "silent": ("HANDLER_ERROR", "SilentError: (no text: its str() raised ValueError)"),
    "hollow": ("HANDLER_ERROR", "HollowError"),
    "sulky": ("SULKY", "<SilentError>"),
    "half": ("HALF", "half a character: \\udcff"),
    "half-other": ("HANDLER_ERROR", "ValueError: half a character: \\udcff"),
    "long": ("L" * 61 + "…", "é" * 2046 + "…"),
    "detail": ("DETAIL", "the detail is none"),
    "silent-detail": ("DETAIL", "silent inside"),
    "several": ("HANDLER_ERROR", "2 failures: ValueError: one; KeyError: 'two'"),
    "mixed": (
        "HANDLER_ERROR",
        "2 failures: SilentError: (no text: its str() raised ValueError); CartridgeError: CODE (input): has a code",
    ),
    "exit": ("HANDLER_ERROR", "SystemExit"),
}


@pytest.mark.parametrize("handler", [fail, fail_async])
@pytest.mark.parametrize("name", FAILURES)
def test_whatever_is_raised_ends_the_request(driver: Driver, handler: object, name: str) -> None:
    meta = ask(driver, handler, name).meta
    assert (meta["code"], meta["message"]) == FAILURES[name]


def test_a_detail_keeps_what_can_be_sent_and_shows_the_rest(driver: Driver) -> None:
    assert ask(driver, fail, "half").meta["detail"] == {"seen": "\\udcff", "limit": 3}
    assert ask(driver, fail, "silent-detail").meta["detail"] == {"seen": "<SilentError>", "limit": 2}
    long = ask(driver, fail, "long").meta["detail"]
    assert long["seen"].startswith("<object object at ")
    assert long["param"] == "p" * 197 + "…"
    assert "detail" not in ask(driver, fail, "detail").meta


def test_a_callback_that_raises_anything_leaves_the_request_its_end(driver: Driver) -> None:
    rid = next(IDS)
    driver.send(*whole_request(rid, cap_of(exit_on_cancel), "media:text", "x"))
    driver.logged(rid, "busy")
    driver.send(cancel_frame(rid, USER_CANCEL))
    assert driver.terminal(rid).meta["code"] == "CANCELLED"


def test_a_stray_cancellation_is_a_failure_like_others(driver: Driver) -> None:
    meta = ask(driver, stray).meta
    assert (meta["code"], meta["message"][:9]) == ("HANDLER_ERROR", "Cancelled")


LOST = "nobody gets that, answer with request.output.write()"


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (stub.return_text, f"handler return_text returned a str: {LOST}"),
        (stub.return_text_async, f"handler return_text_async returned a str: {LOST}"),
        (stub.return_awaitable, "handler return_awaitable returned an awaitable: write it as `async def`"),
        (
            stub.forget_await,
            "output 'media:text': a write, item, open or flush was not awaited, and so not done: put `await` before it",
        ),
    ],
)
def test_an_answer_that_would_be_lost_is_told_of(driver: Driver, handler: object, said: str) -> None:
    meta = ask(driver, handler).meta
    assert (meta["code"], meta["message"]) == ("HANDLER_ERROR", f"LocalProtocolError: {said}")


class Logs:
    """Takes what a request logs."""

    def __init__(self) -> None:
        self.taken: list[float | None] = []

    def log(self, record: LogRecord) -> None:
        self.taken.append(record.progress)


def test_progress_is_a_share_of_the_whole() -> None:
    logs = Logs()
    request = RequestBase(logs)  # type: ignore[arg-type]
    for fraction in (0, 0.5, Fraction(1, 4), True, 1.0 + 2**-50, -(2.0**-50)):
        request.progress(fraction, "so far")  # type: ignore[arg-type]
    assert logs.taken == [0.0, 0.5, 0.25, 1.0, 1.0, 0.0]
    for wrong in (7, 100, -1, 1.01, float("nan"), float("inf"), "half", None):
        with pytest.raises(LocalProtocolError, match=r"fraction must be a number from 0\.0 to 1\.0, not "):
            request.progress(wrong, "so far")  # type: ignore[arg-type]
    assert len(logs.taken) == 6
