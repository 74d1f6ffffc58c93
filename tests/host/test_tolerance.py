"""What is wrong and costs nobody anything: counted, and told once with who did it, what was seen and what was due."""

from __future__ import annotations

import json
import logging
import os
import signal
from typing import Any

import pytest

from capdag.errors import RemoteProtocolError
from capdag.host.handshake import Handshake
from capdag.host.told import Told
from capdag.urn import CapUrn
from capdag.wire import DEFAULT_LIMITS, FrameType, FrameView, hello_frame, view_of
from tests.host.driver import LINKS, bench, record
from tests.misbehave import CAP, GOOD, manifest

CANONICAL = str(CapUrn.parse(CAP))

STRAYS = [
    ("CREDIT", "protocol_violation: credit_dir must be 'request' for the body of a request that the cartridge serves"),
    ("CANCEL", "protocol_violation: only who made a request may send it, and this one the cartridge serves"),
    ("CLOSE_STREAM", "protocol_violation: only who made a request may send it, and this one the cartridge serves"),
    ("END", "no_route: the cartridge serves no request, and has made no call, of this id and XID"),
    ("LOG", "protocol_violation: LOG 'info' has no known attribution_class: None"),
]


def told(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == level and entry.name == "capdag.host"]


@LINKS
async def test_frames_that_go_nowhere_are_told_once_with_their_sender_and_the_reason(
    link: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H61, H19."""
    caplog.set_level(logging.DEBUG, "capdag.host")
    async with bench(record("Strays"), link=link) as it:
        call = it.relay.call(CAP).body(b"x")
        assert await call.succeeded() == b"x"
        assert it.protocol["drops"]["by_reason_frame_type"] == {
            "protocol_violation": {"credit": 4, "cancel": 2, "close_stream": 2, "log": 4},
            "no_route": {"end": 2},
        }
        logs = [dict(view.meta) for view in call.of(FrameType.LOG)]
        assert [log["level"] for log in logs] == ["info"] * 2 + ["progress"] * 4
    warnings = told(caplog)
    assert len(warnings) == len(STRAYS) + 1
    for (kind, why), line in zip(STRAYS, warnings, strict=False):
        assert line.startswith(f"cartridge 'cart': dropped {kind} of request ")
        assert f"(xid {99999 if kind == 'END' else 1}): {why}" in line
        assert "more of this kind are counted" in line
    assert "call that it made, not None" in warnings[0]
    assert "progress of a LOG must be a number from 0.0 to 1.0, not 7.0" in warnings[-1]
    others = [line for line in told(caplog, logging.DEBUG) if line.startswith("cartridge 'cart': dropped")]
    assert len(others) == 14 - len(STRAYS)
    assert any("call that it made, not 'response'" in line for line in others)
    assert any("LOG needs" in line for line in others)


async def test_frames_of_the_relay_that_go_nowhere_are_told_once_too(caplog: pytest.LogCaptureFixture) -> None:
    """H61."""
    async with bench(record()) as it:
        call = it.relay.call(CAP)
        call.body(b"x")
        for _ in range(2):
            call.start("late")
        await call.succeeded()
        assert it.protocol["drops"]["by_reason_frame_type"] == {"protocol_violation": {"stream_start": 2}}
    (line,) = told(caplog)
    assert line.startswith("the relay: dropped STREAM_START of request ")
    assert "protocol_violation: the body of this request has ended" in line


async def test_other_requests_and_processes_are_no_news_but_a_reset_is(caplog: pytest.LogCaptureFixture) -> None:
    """H61."""
    async with bench(record("Strays")) as it:
        await it.relay.call(CAP).body(b"x").succeeded()
        first = len(told(caplog))
        await it.relay.call(CAP).body(b"x").succeeded()
        assert len(told(caplog)) == first
        os.kill(it.cartridge()["pid"], signal.SIGKILL)
        await it.relay.until(lambda: it.state() == "dead")
        await it.relay.call(CAP).body(b"x").succeeded()
        assert len(told(caplog)) == first
        os.kill(it.cartridge()["pid"], signal.SIGKILL)
        await it.relay.until(lambda: it.state() == "dead")
        it.host.reset("cart")
        await it.relay.call(CAP).body(b"x").succeeded()
        assert len(told(caplog)) == 2 * first


def test_what_was_said_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """H61."""
    said = Told()
    assert [said.is_news("a"), said.is_news("a"), said.is_news("b")] == [True, False, True]
    counts = []
    for faults in (["x"], ["x"], ["x", "y"], [], ["x"]):
        caplog.clear()
        said.tell_tolerated("cart", faults)
        counts.append(len(caplog.records))
    assert counts == [2, 0, 3, 0, 2]


async def test_manifest_that_says_too_little_is_served_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """H62, H63, H2."""
    async with bench(record("OddManifest", caps=[CAP])) as it:
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        (group,) = it.relay.advertised()["cart"]["cap_groups"]
        assert [cap["aliases"] for cap in group["caps"]] == [["in=media:octets"]]
        assert it.cartridge()["caps"] == [CANONICAL]
        warnings = told(caplog)
        os.kill(it.cartridge()["pid"], signal.SIGKILL)
        await it.relay.until(lambda: it.state() == "dead")
        assert await it.relay.call(CAP).body(b"x").succeeded() == b"x"
        assert told(caplog) == warnings
    assert all(line.startswith("cartridge 'cart'") for line in warnings)
    for said, line in zip(
        [
            f"cap {CAP!r} needs title",
            f"cap {CAP!r}: args[0].required must be true or false, not 'yes'",
            "cap 'cap:out=media:octets;misdeed;in=media:octets': its canonical form is",
            f"cap {CANONICAL!r} is listed 2 times: only the first counts",
            f"there is none for 'cap:effect=none', {CANONICAL!r}, 'all'",
            "serves here all the same; other hosts refuse it (`capdag check COMMAND` tells all)",
        ],
        warnings,
        strict=True,
    ):
        assert said in line


def hello(said: dict[str, Any]) -> FrameView:
    return view_of(hello_frame(DEFAULT_LIMITS, manifest=json.dumps(said).encode(), pools={}))


def test_lines_about_a_manifest_are_few_and_short(caplog: pytest.LogCaptureFixture) -> None:
    """H62."""
    handshake = Handshake(DEFAULT_LIMITS)
    handshake.feed(hello(manifest("m", [f"cap:x{number};y={'z' * 5000}" for number in range(100)])))
    assert len(handshake.tolerated) > 100
    Told().tell_tolerated("cart", handshake.tolerated)
    lines = told(caplog)
    assert len(lines) == 9
    assert all(len(line) < 500 for line in lines)
    assert f"({len(handshake.tolerated) - 8} more; `capdag check COMMAND` tells all)" in lines[-1]


def test_cap_that_nobody_can_call_is_a_wrong_answer() -> None:
    """H63, H9."""
    said = manifest("m", [GOOD])
    args = said["cap_groups"][0]["caps"][1]["args"]
    args.append({**args[0], "name": "second"})
    with pytest.raises(RemoteProtocolError, match=r"args must have 1 with a stdin source .* not 2"):
        Handshake(DEFAULT_LIMITS).feed(hello(said))
