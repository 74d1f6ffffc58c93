"""CANCEL in each phase of a request: one ERR with the reason's code and class, and work that stops."""

from __future__ import annotations

import pytest

from capdag.errors import AttributionClass
from capdag.wire import (
    USER_CANCEL,
    CancelReason,
    Frame,
    FrameType,
    body_end_frame,
    cancel_frame,
)
from cartridges.echo import ECHO, SLOW_ECHO
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import STUB_COMMAND, Driver, cartridge, chunk, req, start, whole_request

COLLATERAL = CancelReason("ABORTED_COLLATERAL", AttributionClass.RESOURCE, "step 2 ran out")


def ends_with(driver: Driver, rid: int, reason: CancelReason, suffix: str = "") -> None:
    """Check that the request's terminal is the cancel's, and that none follows."""
    assert driver.terminal(rid).meta == {
        "code": reason.code,
        "attribution_class": reason.attribution.value,
        "message": reason.message + suffix,
    }
    assert driver.silent(0.05)
    assert len([view for view in driver.of(rid) if view.type is FrameType.ERR]) == 1


@pytest.mark.parametrize("reason", [USER_CANCEL, COLLATERAL])
def test_a_handler_that_works_runs_until_it_returns(reason: CancelReason) -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD, xid=4))
        driver.logged(1, "holding")
        driver.send(cancel_frame(1, reason, xid=4))
        driver.logged(1, "let go")
        ends_with(driver, 1, reason)
        assert {view.xid for view in driver.of(1)} == {4}


def test_a_cancel_without_reason_is_internal() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "holding")
        driver.send(Frame(FrameType.CANCEL, 1), Frame(FrameType.CANCEL, 1))
        ends_with(driver, 1, CancelReason("CANCELLED", AttributionClass.INTERNAL, "the request was cancelled"))


def test_a_handler_that_waits_for_its_argument_stops_at_once() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.READ))  # no STREAM_START yet
        driver.logged(1, "reading")
        driver.send(cancel_frame(1, COLLATERAL))
        ends_with(driver, 1, COLLATERAL)
        driver.send(req(2, stub.READ), start(2, "media:octets"), chunk(2, 0, b"\x41a"))  # in mid-stream
        driver.logged(2, "reading")
        driver.send(cancel_frame(2, COLLATERAL))
        ends_with(driver, 2, COLLATERAL)


def test_a_handler_that_waits_for_credit_stops_at_once() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.FLOOD))
        for _ in range(driver.limits.initial_credit):
            driver.next(lambda view: view.type is FrameType.CHUNK)
        assert driver.silent(0.1), "it must wait for credit"
        driver.send(cancel_frame(1, USER_CANCEL))
        driver.logged(1, "stopped: ")
        ends_with(driver, 1, USER_CANCEL)


def test_a_handler_that_ignores_it_gets_no_success() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.STUBBORN))
        driver.logged(1, "working")
        driver.send(cancel_frame(1, USER_CANCEL))
        ends_with(driver, 1, USER_CANCEL)
        assert [view.type for view in driver.of(1)] == [FrameType.LOG, FrameType.ERR]


def test_callbacks_run_in_another_thread_before_the_terminal() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.CALLBACK))
        driver.logged(1, "waiting")
        driver.send(cancel_frame(1, USER_CANCEL))
        assert driver.logged(1, "called back").meta["message"] == "called back in another thread: True"
        ends_with(driver, 1, USER_CANCEL)


def test_a_queued_request_leaves_the_line_at_once() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.logged(1, "holding")
        driver.send(req(2, stub.HOLD, xid=8), cancel_frame(2, USER_CANCEL, xid=8))
        ends_with(driver, 2, USER_CANCEL, " (while queued)")
        assert [(view.type, view.seq, view.xid) for view in driver.of(2)] == [
            (FrameType.LOG, 0, 8),
            (FrameType.ERR, 1, 8),
        ]
        driver.send(cancel_frame(1, USER_CANCEL))
        ends_with(driver, 1, USER_CANCEL)


def test_a_cancel_that_comes_too_late_or_for_nobody_is_ignored() -> None:
    with cartridge() as driver:
        driver.attach()
        assert driver.ask(1, ECHO).type is FrameType.END
        driver.send(cancel_frame(1, USER_CANCEL), cancel_frame(99, USER_CANCEL))
        assert driver.silent(0.1)
        meta = driver.heartbeat(50).meta
        assert (meta["stragglers_total"], meta["drops_total"]) == (1, 1)


def test_the_neighbour_is_not_disturbed() -> None:
    with cartridge() as driver:
        driver.attach()
        driver.send(*whole_request(1, SLOW_ECHO, "media:octets", b"a" * 100))
        driver.send(*whole_request(2, SLOW_ECHO, "media:octets", b"bcd"))
        driver.next(lambda view: view.id == 1 and view.type is FrameType.CHUNK)
        driver.send(cancel_frame(1, USER_CANCEL), body_end_frame(1))
        assert driver.terminal(2).type is FrameType.END
        assert b"".join(view.fields[6][1:] for view in driver.of(2, FrameType.CHUNK)) == b"bcd"
        assert len(driver.of(1, FrameType.CHUNK)) < 100
