"""Async handlers in a real process: the same rules as for plain ones, and cancellation as trio has it."""

from __future__ import annotations

import random
import sys
import time

import pytest

from capdag.errors import AttributionClass
from capdag.wire import (
    DEFAULT_LIMITS,
    USER_CANCEL,
    CancelReason,
    FrameType,
    NetworkPolicy,
    body_end_frame,
    cancel_frame,
    decode_value,
    policy_frame,
    scalar_payloads,
)
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import TASKS_COMMAND, cartridge, chunk, req, sequence_payloads, start, whole_request


@pytest.mark.parametrize("window", [1, 5])
def test_bulk_both_ways_whatever_the_window(window: int) -> None:
    data = random.Random(window).randbytes(500_017)
    limits = DEFAULT_LIMITS._replace(initial_credit=window, max_chunk=32 * 1024)
    with cartridge(TASKS_COMMAND, limits=limits) as driver:
        driver.attach()
        answer = driver.exchange(1, stub.ECHO, "media:octets", list(scalar_payloads(data, limits.max_chunk)))
        assert b"".join(answer.values["media:octets"]) == data
        items = [{"n": 1}, b"x" * 100_000, "y", None]
        payloads = sequence_payloads(items, limits.max_chunk)
        answer = driver.exchange(2, stub.COLLECT, stub.ITEMS, payloads, sequence=True)
        assert answer.values[stub.ITEMS] == items
        (head,) = [view for view in answer.frames if view.type is FrameType.STREAM_START]
        assert head.meta == {"sequence": True, "media": stub.ITEMS}
        assert sum(view.meta == {"seen": True} for view in answer.frames) == len(items)


def test_tasks_and_threads_side_by_side() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(*whole_request(1, stub.THREAD, "media:octets", b"thread"))
        assert driver.ask(2, stub.ECHO, value=b"task").type is FrameType.END
        assert driver.heartbeat(3).type is FrameType.HEARTBEAT
        assert [view.type for view in driver.of(1)] == [], "the thread sleeps, and keeps nobody from anything"
        assert driver.terminal(1).type is FrameType.END
        assert [view.seq for view in driver.of(1)] == [0, 1, 2, 3]


def test_a_cancelled_task_cleans_up_and_ends_with_one_err() -> None:
    reason = CancelReason("TOO_LATE", AttributionClass.RESOURCE, "the deadline has passed")
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "holding")
        driver.send(req(2, stub.HOLD))
        driver.logged(2, "the request is queued at position 1")
        driver.send(cancel_frame(1, reason))
        meta = driver.terminal(1).meta
        assert (meta["code"], meta["attribution_class"], meta["message"]) == reason
        assert [view.meta["message"] for view in driver.of(1, FrameType.LOG)] == [
            "holding",
            "cancelled: True",
            "cleaned up",
        ]
        driver.logged(2, "holding")
        driver.send(cancel_frame(2, USER_CANCEL))
        assert driver.terminal(2).meta["code"] == "CANCELLED"
        assert len(driver.of(1)) == 4


def test_clean_up_without_end_has_an_end() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.STUBBORN))
        driver.logged(1, "working")
        driver.send(cancel_frame(1, USER_CANCEL))
        assert driver.terminal(1, patience=2).meta["code"] == "CANCELLED"
        assert driver.ask(2, stub.ECHO).type is FrameType.END


def test_a_task_that_waits_for_credit_is_cancelled() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.FLOOD))
        for _ in range(32):
            driver.next(lambda view: view.type is FrameType.CHUNK)
        assert driver.silent(0.05)
        driver.send(cancel_frame(1, USER_CANCEL))
        assert driver.terminal(1).meta["code"] == "CANCELLED"


def test_failures_of_tasks() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        meta = driver.ask(1, stub.ERROR).meta
        assert (meta["code"], meta["attribution_class"]) == ("TOO_HOT", "input")
        assert meta["detail"] == {"param": "temperature"}
        meta = driver.ask(2, stub.BOOM).meta
        assert (meta["code"], meta["message"]) == ("HANDLER_ERROR", "ValueError: boom")
        assert driver.close() == 0
        assert "raise ValueError" in driver.stderr()


def test_items_in_their_type() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        answer = driver.exchange(1, stub.TYPED, stub.ITEMS, sequence_payloads([1, 2, 3], 1000), sequence=True)
        assert answer.values[stub.TEXT_CANONICAL] == ["6"]
        answer = driver.exchange(2, stub.TYPED, stub.ITEMS, sequence_payloads([1, "two"], 1000), sequence=True)
        meta = answer.frames[-1].meta
        assert (meta["code"], meta["attribution_class"]) == ("INVALID_REQUEST", "input")
        assert "[1] is 'two': send int" in meta["message"]


def test_a_policy_that_comes_in_the_middle_of_a_request() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.POLICY), start(1, "media:octets"))
        for number, network in enumerate((NetworkPolicy.FULL, NetworkPolicy.OFFLINE)):
            driver.send(policy_frame(network), chunk(1, number, b"\0"))
            told = driver.next(lambda view: view.type is FrameType.CHUNK)
            assert decode_value(told.fields[6]) == network


def test_a_request_of_a_task_is_for_its_thread() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.WRONG_THREAD), body_end_frame(1))
        driver.terminal(1)
        (chunk,) = driver.of(1, FrameType.CHUNK)
        assert "use trio.from_thread.run_sync" in decode_value(chunk.fields[6])
        assert [view.meta["message"] for view in driver.of(1, FrameType.LOG)] == ["right"]


def test_eof_cancels_tasks_and_threads() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD), req(2, stub.HOLD), req(3, stub.THREAD), start(3, "media:octets"))
        driver.logged(1, "holding")
        driver.process.stdin.close()
        ends = [driver.next(lambda view: view.type is FrameType.ERR).meta for _ in range(3)]
        assert {(meta["code"], meta["attribution_class"]) for meta in ends} == {("ABORTED", "environment")}
        assert driver.exit_code() == 0


def test_eof_waits_two_seconds_for_clean_up_and_no_longer() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.STUBBORN))
        driver.logged(1, "working")
        began = time.monotonic()
        assert driver.close() == 0
        assert 1.5 < time.monotonic() - began < 4


def test_it_ends_when_only_its_output_is_closed() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "holding")
        driver.process.stdout.close()
        assert driver.exit_code() == 0


def test_bad_frames_end_it_as_ever() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send_bytes(b"\0\0\0\1\xff")
        assert driver.exit_code() == 0
        assert "cartridge: " in driver.stderr()


def test_what_a_plain_cartridge_never_imports() -> None:
    code = """
import sys
from capdag.cartridge import AsyncRequest, Cartridge, Request, Argument
c = Cartridge("c", version="1")
@c.cap("cap:mods;in=media:text;out=media:text", title="t", aliases=["t"])
def mods(request):
    text = request.main_input().read()
    request.output.write(repr({m for m in ("trio", "msgspec", "asyncio", "json.tool") if m in sys.modules}))
    request.main_input().json
c.run()
"""
    with cartridge((sys.executable, "-c", code)) as driver:
        driver.attach()
        driver.ask(1, "cap:mods;in=media:text;out=media:text", "media:text")
        assert decode_value(driver.of(1, FrameType.CHUNK)[0].fields[6]) == "set()"


def test_what_stands_before_hello() -> None:
    """HELLO is answered before anything that only requests need has been imported, and long before an engine."""
    code = """
import sys
from capdag.cartridge import AsyncRequest, Cartridge, Request
loaded = set(sys.modules)
c = Cartridge("c", version="1")
@c.cap("cap:engine;in=media:void;out=media:text", title="t", aliases=["t"])
async def engine(request: AsyncRequest) -> None:
    import wave as engine
    early = loaded & {"trio", "wave", "msgspec", "capdag.cartridge._session", "capdag.cartridge._job"}
    await request.output.write(f"{engine.__name__} {early} {'trio' in sys.modules}")
c.run()
"""
    with cartridge((sys.executable, "-c", code)) as driver:
        driver.attach()
        driver.send(req(1, "cap:engine;in=media:void;out=media:text"), body_end_frame(1))
        driver.terminal(1)
        assert decode_value(driver.of(1, FrameType.CHUNK)[0].fields[6]) == "wave set() True"


@pytest.mark.parametrize("cap", [stub.KEEP, stub.KEEP_PLAIN])
def test_keep_alive_says_what_was_said_last(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, cap), body_end_frame(1))
        assert driver.terminal(1).type is FrameType.END
        beats = [view.meta for view in driver.of(1, FrameType.LOG) if view.meta["message"] == "loading"]
        assert {(meta["level"], meta["progress"]) for meta in beats} == {("progress", 0.25)}
        if cap == stub.KEEP_PLAIN:
            assert len(beats) == 3, "one at once, and two up to the limit"
        else:
            assert len(beats) >= 3


def test_what_goes_on_in_the_background_outlives_its_request_and_fails_alone() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.BACKGROUND), body_end_frame(1))
        assert driver.terminal(1).type is FrameType.END
        assert driver.ask(2, stub.ECHO).type is FrameType.END
        assert driver.close() == 0
        said = driver.stderr()
    assert "ValueError: in the background" in said
    assert said.endswith("background closed\n")
