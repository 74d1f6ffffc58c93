"""Calls that handlers make, with the test as the host and the callee: both kinds of handler, frame by frame."""

from __future__ import annotations

import math
from threading import Lock
from typing import Any

import pytest

from capdag.cartridge import Argument, CartridgeError
from capdag.cartridge._call_core import CallCore, check_call
from capdag.cartridge._calls import MAX_CALLS, CallTable
from capdag.cartridge._errors import RequestCancelledError
from capdag.errors import AttributionClass, LocalProtocolError
from capdag.wire import (
    REQUEST,
    RESPONSE,
    USER_CANCEL,
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    InStreams,
    LogRecord,
    ReleasedRing,
    body_end_frame,
    cancel_frame,
    credit_frame,
    decode_value,
    encode_frame,
    encode_value,
    end_frame,
    err_frame,
    log_frame,
)
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import TASKS_COMMAND, Driver, cartridge, chunk, end, req, start, whole_request

CALLEE = "cap:callee;in=media:octets;out=media:octets"
PARENT = b"p" * 16

both = pytest.mark.parametrize("cap", [stub.ASK, stub.ASK_PLAIN])


def ask(driver: Driver, cap: str, callee: str = CALLEE) -> FrameView:
    """Have a handler call; returns its REQ."""
    driver.send(*whole_request(PARENT, cap, stub.TEXT, callee, xid=9))
    return driver.find(lambda view: view.type is FrameType.REQ)


def answer(rid: Any, *values: Any, xid: int = 5) -> list[Frame]:
    """Build a whole answer."""
    frames = [
        start(rid, "media:octets", stream="resp-0"),
        *[chunk(rid, number, encode_value(value), stream="resp-0") for number, value in enumerate(values)],
        end(rid, len(values), stream="resp-0"),
        end_frame(rid),
    ]
    for frame in frames:
        frame.routing_id = xid
    return frames


def text_of(driver: Driver, rid: Any) -> bytes:
    """Return what a request was answered, joined."""
    return b"".join(decode_value(view.fields[6]) for view in driver.of(rid, FrameType.CHUNK))


@both
def test_a_call_is_a_request_of_its_own(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, cap)
        assert asked.fields[10] == "cap:callee;in=media:octets;out=media:octets"
        assert (asked.xid, asked.meta, asked.fields[6]) == (None, {"parent_rid": PARENT}, b"")
        assert isinstance(asked.id, bytes)
        assert (asked.id[6] >> 4, asked.id[8] >> 6) == (4, 2), "a UUID of version 4"
        for _ in range(32):
            driver.next(lambda view: view.type is FrameType.CHUNK)
        assert driver.silent(0.05), "one window, and no more without credit"
        driver.send(credit_frame(asked.id, "arg-0", 1, REQUEST, xid=5))
        driver.next(lambda view: view.type is FrameType.CHUNK)
        assert driver.silent(0.05)
        unnamed = credit_frame(asked.id, "", 32, REQUEST)
        unnamed.stream_id = None
        for grant in (unnamed, credit_frame(asked.id, "arg-0", 32, REQUEST)):
            driver.send(grant)
            for _ in range(32):
                driver.next(lambda view: view.type is FrameType.CHUNK)
        driver.send(*answer(asked.id, b"yes"))
        assert driver.terminal(PARENT).type is FrameType.END
        assert text_of(driver, PARENT) == b"yes"
        assert {view.xid for view in driver.of(asked.id)} == {None}
        assert [view.seq for view in driver.of(asked.id) if view.type is FrameType.CHUNK] == list(range(2, 99)), (
            "97 of 100"
        )
        assert driver.heartbeat(3).meta["drops_total"] == 0


@both
def test_the_answer_is_granted_by_name_while_it_is_read(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, cap)
        driver.send(start(asked.id, "media:octets", stream="resp-0"))
        for number in range(32):
            driver.send(chunk(asked.id, number, encode_value(b"x"), stream="resp-0"))
        granted = 0
        while granted < 32:
            view = driver.find(lambda view: view.type is FrameType.CREDIT and view.id == asked.id)
            driver.frames.remove(view)
            assert (view.stream_id, view.meta, view.xid) == ("resp-0", {"credit_dir": RESPONSE}, None)
            granted += view.fields[19]
        assert granted == 32
        driver.send(end(asked.id, 32, stream="resp-0"), end_frame(asked.id))
        assert driver.terminal(PARENT).type is FrameType.END
        assert text_of(driver, PARENT) == b"x" * 32


@both
def test_progress_of_the_callee_is_passed_on(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, cap)
        driver.send(
            log_frame(asked.id, LogRecord("progress", "half", 0.5)), log_frame(asked.id, LogRecord("info", "no"))
        )
        for nonsense in (7.0, -0.5, math.nan):
            driver.send(log_frame(asked.id, LogRecord("progress", "past the end", nonsense)))
        driver.send(Frame(FrameType.LOG, asked.id))
        empty = len(encode_frame(log_frame(asked.id, LogRecord("progress", "!" * 70_000, 0.1)))) - 70_000
        text = "!" * (driver.limits.max_frame - empty)  # it fills a frame that has no routing id
        driver.send(log_frame(asked.id, LogRecord("progress", text, 0.1)))
        driver.send(*answer(asked.id))
        driver.terminal(PARENT)
        logs = driver.of(PARENT, FrameType.LOG)
        assert [(view.meta["message"], view.meta["progress"], view.xid) for view in logs] == [("half", 0.75, 9)]
        frames = [view for view in driver.of(PARENT) if view.type is not FrameType.CREDIT]
        assert [view.seq for view in frames] == list(range(len(frames)))


@both
def test_a_failure_keeps_code_class_and_detail(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, cap)
        failure = Failure("TOO_HOT", AttributionClass.RESOURCE, "cool down", {"limit": 2})
        driver.send(start(asked.id, "media:octets", stream="r"), chunk(asked.id, 0, encode_value(b"part"), stream="r"))
        driver.send(err_frame(asked.id, failure))
        meta = driver.terminal(PARENT).meta
        assert meta == {
            "code": "TOO_HOT", "attribution_class": "resource", "message": "cool down", "detail": {"limit": 2},
        }  # fmt: skip
        assert not [view for view in driver.of(asked.id) if view.type is FrameType.CANCEL]


@both
def test_an_answer_that_is_none(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        for wrong in (
            "exit code", "no stream", "checksum", "two mains", "two named", "open stream", "other media", "no media",
            "two items",
        ):  # fmt: skip
            asked = ask(driver, cap)
            head = start(asked.id, "media:octets", stream="a")
            bad = chunk(asked.id, 0, encode_value(b"x"), stream="a")
            bad.checksum = 1
            named = [start(asked.id, "media:notes", stream=stream) for stream in "bc"]
            for one in named:
                one.output = "media:notes"
            items = start(asked.id, "media:octets", stream="a")
            items.is_sequence = True
            frames = {
                "exit code": [Frame(FrameType.END, asked.id, meta={"exit_code": 3, "message": "three"})],
                "no stream": [chunk(asked.id, 0, b"\0", stream="a")],
                "checksum": [head, bad],
                "two mains": [head, start(asked.id, "media:octets", stream="b")],
                "two named": named,
                "open stream": [head, end_frame(asked.id)],
                "other media": [start(asked.id, "media:image", stream="a")],
                "no media": [start(asked.id, "nonsense", stream="a")],
                "two items": [items, chunk(asked.id, 0, b"\0\0", stream="a")],
            }
            driver.send(*frames[wrong])
            meta = driver.terminal(PARENT).meta
            if wrong == "exit code":
                assert (meta["code"], meta["message"]) == ("HANDLER_ERROR", "three")
            else:
                assert meta["code"] == "PROTOCOL_VIOLATION", wrong
                cancel = driver.find(lambda view, rid=asked.id: view.type is FrameType.CANCEL and view.id == rid)
                assert cancel.meta["code"] == "PROTOCOL_VIOLATION"
            driver.frames.clear()
            driver.position = 0


@both
def test_cancel_goes_on_to_calls(cap: str) -> None:
    reason = CancelReason("TOO_LATE", AttributionClass.RESOURCE, "the deadline has passed")
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, cap)
        huge = reason._replace(message=reason.message + "!" * (driver.limits.max_frame - 200))
        driver.send(cancel_frame(PARENT, huge, force_kill=True))
        cancel = driver.find(lambda view: view.type is FrameType.CANCEL)
        assert (cancel.id, cancel.xid, cancel.fields[18]) == (asked.id, None, True)
        assert (cancel.meta["code"], cancel.meta["attribution_class"]) == reason[:2]
        assert cancel.meta["message"].startswith(reason.message)
        meta = driver.terminal(PARENT).meta
        assert (meta["code"], meta["attribution_class"]) == ("TOO_LATE", "resource")
        driver.send(*answer(asked.id, b"too late"))
        assert driver.heartbeat(3).meta["drops_total"] == 0, "it is a straggler"
        assert sum(view.type is FrameType.CANCEL for view in driver.frames) == 1


def test_cancel_reaches_many_calls_at_once_and_is_trio_s() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        ask(driver, stub.FAN)
        for _ in range(29):
            driver.next(lambda view: view.type is FrameType.REQ)
        driver.send(cancel_frame(PARENT, USER_CANCEL))
        assert driver.terminal(PARENT).meta["code"] == "CANCELLED"
        called = {view.id for view in driver.frames if view.type is FrameType.REQ}
        assert len(called) == 30
        assert {view.id for view in driver.frames if view.type is FrameType.CANCEL} == called
        assert [view.meta["message"] for view in driver.of(PARENT, FrameType.LOG)] == ["fanning out"]
        driver.close()
        assert driver.stderr() == ""


@pytest.mark.parametrize("cap", [stub.LEAVE, stub.LEAVE_PLAIN])
def test_leaving_early_cancels(cap: str) -> None:
    with cartridge(TASKS_COMMAND, env={"PYTHONWARNINGS": "always::ResourceWarning"}) as driver:
        driver.attach()
        asked = ask(driver, cap)
        driver.send(start(asked.id, "media:octets", stream="r"), chunk(asked.id, 0, encode_value(b"one"), stream="r"))
        cancel = driver.find(lambda view: view.type is FrameType.CANCEL)
        assert (cancel.id, cancel.meta["code"], cancel.meta["attribution_class"]) == (asked.id, "CANCELLED", "user")
        driver.logged(PARENT, "left")
        assert driver.terminal(PARENT).type is FrameType.END
        assert text_of(driver, PARENT) == b"one"
        driver.close()
        assert driver.stderr() == "", "nothing was left to be closed"


def test_a_call_that_is_left_behind_ends_with_its_request() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, stub.LEFT_BEHIND)
        assert driver.terminal(PARENT).type is FrameType.END
        cancel = driver.find(lambda view: view.type is FrameType.CANCEL)
        assert (cancel.id, cancel.meta["code"]) == (asked.id, "CANCELLED")
        assert driver.process.stderr.readline() == b"told: CANCELLED\n"


def test_outputs_that_nobody_asked_for_stand_in_nobodys_way() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, stub.NAMED)
        texts = [decode_value(driver.next(lambda view: view.type is FrameType.CHUNK).fields[6]) for _ in range(2)]
        assert sorted(texts) == ["extra", "text"], "arguments go out side by side"
        other = start(asked.id, "media:other", stream="o")
        notes = start(asked.id, stub.NOTES, stream="n")
        other.output, notes.output = "media:other", stub.NOTES_CANONICAL
        driver.send(start(asked.id, "media:octets", stream="m"), other, notes)
        for number in range(100):  # three windows
            driver.send(chunk(asked.id, number, b"\0", stream="o"))
            credit = driver.next(lambda view: view.type is FrameType.CREDIT and view.id == asked.id)
            assert (credit.stream_id, credit.fields[19]) == ("o", 1)
        driver.send(chunk(asked.id, 0, encode_value("note"), stream="n"), end(asked.id, 1, stream="n"))
        for number in range(32):
            driver.send(chunk(asked.id, number, b"\0", stream="m"))
        granted = 0
        while granted < 32:
            granted += driver.next(lambda view: view.stream_id == "m" and view.type is FrameType.CREDIT).fields[19]
        driver.send(end(asked.id, 32, stream="m"), end(asked.id, 100, stream="o"), end_frame(asked.id))
        assert driver.terminal(PARENT).type is FrameType.END
        assert text_of(driver, PARENT) == b"note"


@both
def test_a_call_that_comes_back_may_be_answered_before_its_body_has_come(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        call = ask(driver, cap, stub.ECHO)
        driver.send(req(call.id, stub.ECHO, xid=5), start(call.id, "media:octets", stream="arg-0"))
        driver.send(chunk(call.id, 0, encode_value(b"hi"), stream="arg-0"), end(call.id, 1, stream="arg-0"))
        terminal = driver.terminal(call.id)
        echoed = [view for view in driver.of(call.id) if view.xid == 5 and view.type is not FrameType.CREDIT]
        assert [view.type for view in echoed] == [
            FrameType.STREAM_START, FrameType.CHUNK, FrameType.STREAM_END, FrameType.END,
        ]  # fmt: skip
        assert echoed[-1] is terminal
        driver.send(body_end_frame(call.id, xid=5), *(view.frame() for view in echoed))
        assert driver.terminal(PARENT).type is FrameType.END
        assert text_of(driver, PARENT) == b"hi"
        assert driver.heartbeat(3).meta["drops_total"] == 0


@pytest.mark.parametrize("cap", [stub.BREAK, stub.BREAK_PLAIN])
def test_an_argument_that_fails_half_way_fails_the_call(cap: str) -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, cap)
        meta = driver.terminal(PARENT).meta
        assert (meta["code"], meta["attribution_class"]) == ("NO_DATA", "resource")
        cancel = driver.find(lambda view: view.type is FrameType.CANCEL)
        assert cancel.id == asked.id
        assert (cancel.meta["code"], cancel.meta["attribution_class"]) == ("ABORTED_COLLATERAL", "resource")
        assert not [view for view in driver.of(asked.id) if view.type is FrameType.END], "the body was not whole"


def test_arguments_of_every_kind() -> None:
    with cartridge(TASKS_COMMAND) as driver:
        driver.attach()
        asked = ask(driver, stub.LIST)
        driver.find(lambda view: view.type is FrameType.END and view.id == asked.id)
        streams = InStreams(32)
        values: dict[str, list[Any]] = {}
        heads = {}
        for view in driver.of(asked.id):
            if view.type is FrameType.STREAM_START:
                stream = streams.start(view)
                heads[stream.head.media_urn] = stream.head
            elif view.type is FrameType.CHUNK:
                stream = streams.of(view)
                values.setdefault(stream.head.media_urn, []).extend(stream.chunk(view).values)
            elif view.type is FrameType.STREAM_END:
                streams.of(view).end(view)
        assert values == {stub.ITEMS: [{"n": 1}, "x" * 300_000], "media:ticking": [1, 2]}
        items, ticking = heads[stub.ITEMS], heads["media:ticking"]
        assert (items.is_sequence, items.unbounded, items.meta) == (True, False, {"whole": True})
        assert (ticking.is_sequence, ticking.unbounded) == (False, True)
        driver.send(*answer(asked.id, *[b"not read"] * 30))
        assert driver.terminal(PARENT).type is FrameType.END
        assert decode_value(driver.of(PARENT, FrameType.CHUNK)[0].fields[6]).startswith(
            "LocalProtocolError: the call of"
        )


def test_mistakes_in_a_call() -> None:
    for cap, arguments, progress, why in (
        ("calle", [], True, "call of 'calle'"),
        (CALLEE, [Argument("octets", b"")], True, "octets"),
        (CALLEE, [("media:octets", b"")], True, "must be Argument"),
        (CALLEE, [], (0.5, 0.2), "two fractions"),
    ):
        with pytest.raises(LocalProtocolError, match=why):
            check_call(cap, arguments, progress)  # type: ignore[arg-type]


class _Parent:
    """As much of a job as a call table needs."""

    def __init__(self) -> None:
        self.calls: list[CallCore] = []

    def add_call(self, call: CallCore) -> None:
        self.calls.append(call)

    def drop_call(self, call: CallCore) -> None:
        self.calls.remove(call)


def test_there_is_an_end_to_calls() -> None:
    parent: Any = _Parent()
    table = CallTable(Lock(), ReleasedRing(), None)  # type: ignore[arg-type]
    calls = [CallCore(parent, CALLEE, progress=True) for _ in range(MAX_CALLS + 1)]
    for call in calls[:-1]:
        table.open(call)
    with pytest.raises(CartridgeError) as refused:
        table.open(calls[-1])
    assert (refused.value.code, refused.value.attribution) == ("TABLE_FULL", "resource")
    assert table.leave(calls[0])
    assert not table.leave(calls[1]) or calls[1] not in parent.calls
    table.open(calls[-1])


def test_why_a_call_is_given_up() -> None:
    parent: Any = _Parent()
    parent.stop_reason = None
    call = CallCore(parent, CALLEE, progress=True)
    assert call.reason_to_leave(None) == USER_CANCEL
    failed = call.reason_to_leave(CartridgeError("X", "it broke", "resource"))
    assert (failed.code, failed.attribution) == ("ABORTED_COLLATERAL", "resource")
    assert call.reason_to_leave(ValueError("odd")).attribution == "internal"
    parent.stop_reason = Failure("TOO_LATE", AttributionClass.RESOURCE, "late")
    assert call.reason_to_leave(RequestCancelledError(parent.stop_reason)) == parent.stop_reason[:3]
