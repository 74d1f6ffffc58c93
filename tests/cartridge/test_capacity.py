"""Pools: who runs, who waits, and what a heartbeat says about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capdag.wire import (
    IDENTITY_CAP,
    USER_CANCEL,
    FrameType,
    FrameView,
    body_end_frame,
    cancel_frame,
    encode_value,
    read_pools,
)
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import STUB_COMMAND, Driver, cartridge, chunk, end, req, start, whole_request


def counts(reply: FrameView, pool: str) -> tuple[int, int]:
    """Return active and queued of one pool."""
    state = read_pools(reply.meta["pools"])[pool]
    return state.active, state.queued


def hold(driver: Driver, rid: int, cap: str) -> None:
    """Start a request that runs until it is cancelled."""
    driver.send(req(rid, cap))
    driver.logged(rid, "holding")


def release(driver: Driver, rid: int) -> None:
    """End it."""
    driver.send(cancel_frame(rid, USER_CANCEL))
    driver.terminal(rid)


def test_a_full_pool_queues_in_order_and_says_so() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        hold(driver, 1, stub.HOLD)
        driver.send(req(2, stub.HOLD, xid=2), req(3, stub.HOLD))
        assert driver.logged(2, "").meta == {
            "level": "queued",
            "attribution_class": "internal",
            "message": f"the request is queued at position 1 on pool {stub.HOLD_CANONICAL!r}",
        }
        assert "position 2" in driver.logged(3, "").meta["message"]
        reply = driver.heartbeat(50)
        assert counts(reply, stub.HOLD_CANONICAL) == (1, 2)
        assert counts(reply, "engine") == (1, 0)  # it has room: not what they wait for
        assert counts(reply, "all") == (1, 0)
        release(driver, 1)
        driver.logged(2, "holding")
        levels = [view.meta["level"] for view in driver.of(2)]
        assert levels == ["queued", "dequeued", "info"]
        assert [view.seq for view in driver.of(2)] == [0, 1, 2]
        assert len(driver.of(3)) == 1, "the third still waits"
        release(driver, 2)
        driver.logged(3, "holding")
        release(driver, 3)
        assert counts(driver.heartbeat(51), "all") == (0, 0)


def test_who_could_go_is_not_kept_waiting_by_who_could_not() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        hold(driver, 1, stub.HOLD)
        driver.send(req(2, stub.HOLD))
        hold(driver, 3, stub.HOLD_TOO)  # the shared pool of two is now full
        driver.send(req(4, stub.HOLD_TOO))
        driver.logged(4, "the request is queued at position 1")
        reply = driver.heartbeat(50)
        assert counts(reply, "engine") == (2, 2)
        assert counts(reply, stub.HOLD_CANONICAL) == (1, 1)
        release(driver, 3)  # room in the shared pool only: the first in line cannot use it
        driver.logged(4, "holding")
        assert len(driver.of(2)) == 1
        release(driver, 1)
        driver.logged(2, "holding")


def test_the_body_is_taken_while_the_request_waits() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        for rid in (1, 2, 3):
            hold(driver, rid, stub.WAIT)
        pieces = [encode_value(bytes([n])) for n in range(30)]
        driver.send(
            req(4, stub.READ), start(4, "media:octets"), *[chunk(4, n, piece) for n, piece in enumerate(pieces)]
        )
        driver.send(end(4, 30), body_end_frame(4))
        driver.logged(4, "the request is queued")
        release(driver, 2)
        assert driver.terminal(4).type is FrameType.END
        assert driver.of(4, FrameType.CHUNK)[0].fields[6] == encode_value("30")


def test_identity_never_waits() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        for rid in (1, 2, 3):
            hold(driver, rid, stub.WAIT)
        driver.send(*whole_request(4, IDENTITY_CAP, "media:", "bifaci"))
        assert driver.terminal(4).type is FrameType.END


def test_a_broken_body_ends_a_queued_request_at_once() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        hold(driver, 1, stub.HOLD)
        driver.send(req(2, stub.HOLD), chunk(2, 0, b"\x00"))
        assert driver.terminal(2).meta["code"] == "PROTOCOL_VIOLATION"
        release(driver, 1)


def test_capacities_are_set_by_a_heartbeat() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        hold(driver, 1, stub.HOLD)
        driver.send(req(2, stub.HOLD))
        driver.logged(2, "the request is queued")
        reply = driver.heartbeat(50, json.dumps({stub.HOLD_CANONICAL: 2, "all": 0}).encode())
        pools = read_pools(reply.meta["pools"])
        assert (pools[stub.HOLD_CANONICAL].declared, pools[stub.HOLD_CANONICAL].configured) == (1, 2)
        assert (pools["all"].declared, pools["all"].configured) == (3, 0)
        driver.logged(2, "holding")
        driver.heartbeat(51, json.dumps({stub.HOLD_CANONICAL: 1}).encode())
        driver.send(req(3, stub.HOLD))
        driver.logged(3, "the request is queued")
        release(driver, 1)
        assert driver.silent(0.05), "two were allowed, one is: the next waits for both"
        release(driver, 2)
        driver.logged(3, "holding")


@pytest.mark.parametrize(
    ("desired", "why"),
    [
        (b'{"all": 5, "nope": 1}', "unknown pool 'nope'"),
        (b'{"all": -1}', "integer of at least 0"),
        (b'{"all": true}', "integer of at least 0"),
        (b'{"all"', "a JSON object"),
        (b"[]", "a JSON object"),
    ],
)
def test_capacities_are_applied_whole_or_not_at_all(desired: bytes, why: str) -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        answer = driver.heartbeat(50, desired)
        assert answer.type is FrameType.ERR
        assert (answer.meta["code"], answer.meta["attribution_class"]) == ("UNKNOWN_POOL", "internal")
        assert why in answer.meta["message"]
        assert read_pools(driver.heartbeat(51).meta["pools"])["all"].configured == 3


def test_a_heartbeat_is_answered_while_every_handler_works() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        hold(driver, 1, stub.HOLD)
        driver.send(req(2, stub.FLOOD), req(3, stub.READ), req(4, stub.BOOM))
        reply: Any = driver.heartbeat(b"p" * 16)
        assert reply.type is FrameType.HEARTBEAT
        assert {key: reply.meta[key] for key in ("drops_total", "stragglers_total", "overruns_total")} == {
            "drops_total": 0,
            "stragglers_total": 0,
            "overruns_total": 0,
        }
        assert counts(reply, "all") == (3, 1)
        assert reply.xid is None
