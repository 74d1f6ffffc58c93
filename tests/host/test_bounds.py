"""What is bounded: rows, windows along a path, what a cartridge that does not read is owed; and the snapshot."""

from __future__ import annotations

import socket

import msgspec
import pytest
import trio

from capdag.errors import AttributionClass, ConfigError
from capdag.host import HostRuntime, HostSettings
from capdag.host.debt import LOG_LIMIT, UNCREDITED_LIMIT, Backlog, stream_debt
from capdag.transport import socket_link
from capdag.transport.bytelink import READ_SIZE
from capdag.wire import (
    DEFAULT_LIMITS,
    TERMINAL_TYPES,
    Frame,
    FrameSplitter,
    FrameType,
    FrameView,
    LogRecord,
    NetworkPolicy,
    body_end_frame,
    encode_value,
    failure_of,
    fnv1a_64,
    inspect,
    log_frame,
    pack,
    policy_frame,
    view_of,
)
from tests.host.driver import LINKS, PATIENCE, QUICK, bench, record
from tests.misbehave import CALL, CAP, GOOD


@LINKS
async def test_full_table_refuses_new_requests_and_touches_no_live_one(link: str) -> None:
    """H19."""
    async with bench(record(), link=link, settings=msgspec.structs.replace(QUICK, table_limit=2)) as it:
        first, second = it.relay.call(CAP), it.relay.call(CAP)
        assert "raise table_limit" in await it.relay.call(CAP).failed("TABLE_FULL")
        first.body(b"x")
        assert await first.succeeded() == b"x"
        second.body(b"y")
        assert await second.succeeded() == b"y"
        assert it.protocol["routing_gc_evicted_total"] == 0


@LINKS
async def test_full_table_refuses_calls_of_cartridges(link: str) -> None:
    """H19."""
    async with bench(record(), link=link, settings=msgspec.structs.replace(QUICK, table_limit=1)) as it:
        it.relay.loops = False
        await it.relay.call(GOOD).body(b"x").succeeded()
        call = it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: it.relay.loose)
        assert it.protocol["outgoing_rids"] == 1
        assert it.relay.loose[0].type is FrameType.REQ
        it.relay.fail(it.relay.loose[0].id, xid=9)
        await call.failed("HANDLER_ERROR")


@LINKS
async def test_sender_with_a_wider_window_is_held_to_what_the_requester_knows(link: str) -> None:
    """H21: one cartridge agreed on 2, so 2 is advertised; another's window is 32 and it uses it at once."""
    small = record("SmallWindow", name="small", caps=["cap:small"])
    async with bench(small, record("WritesOn"), link=link) as it:
        await it.relay.call("cap:small").body(b"x").succeeded()
        await it.relay.until(lambda: it.relay.notices[-1].limits.initial_credit == 2)
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: len(call.of(FrameType.CHUNK)) == 2)
        await it.relay.call(GOOD).body(b"y").succeeded()
        assert len(call.of(FrameType.CHUNK)) == 2
        call.grants = True
        call.grant("out", 2)
        await call.ended()
        assert [view.fields[14] for view in call.of(FrameType.CHUNK)] == list(range(200))
        assert call.frames[-1].type is FrameType.END


@LINKS
async def test_cancel_of_an_answer_that_waits_for_its_requester_ends_it(link: str) -> None:
    """H25."""
    small = record("SmallWindow", name="small", caps=["cap:small"])
    async with bench(small, record("FourPieces"), link=link) as it:
        await it.relay.call("cap:small").body(b"x").succeeded()
        await it.relay.until(lambda: it.relay.notices[-1].limits.initial_credit == 2)
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: len(call.of(FrameType.CHUNK)) == 2)
        await it.relay.call(GOOD).body(b"y").succeeded()  # the handler's END has come by now, and waits
        call.cancel()
        await call.failed("CANCELLED")


@LINKS
async def test_answer_that_waits_for_its_requester_outlives_the_process(link: str) -> None:
    """H35."""
    small = record("SmallWindow", name="small", caps=["cap:small"])
    async with bench(small, record("FourPiecesAndLeaves"), link=link) as it:
        await it.relay.call("cap:small").body(b"x").succeeded()
        await it.relay.until(lambda: it.relay.notices[-1].limits.initial_credit == 2)
        call = it.relay.call(CAP)
        call.grants = False
        call.body(b"x")
        await it.relay.until(lambda: it.state() == "dead")
        assert len(call.of(FrameType.CHUNK)) == 2
        call.grant("out", 2)
        assert await call.succeeded() == b"0123"


async def test_snapshot_has_the_shape_of_the_protocol_stats() -> None:
    async with bench(record()) as it:
        call = it.relay.call(CAP)
        await it.relay.until(lambda: it.cartridge()["active"] == 1)
        assert it.host.snapshot() == {
            "id": it.relay.notices[0].host_id,
            "policy": "no_telemetry",
            "cartridges": [
                {
                    "id": "cart",
                    "state": "running",
                    "pid": it.cartridge()["pid"],
                    "active": 1,
                    "waiting": 0,
                    "calls": 0,
                    "restarts": 0,
                    "failed_starts": 0,
                    "crashes": 0,
                    "pause": 0.0,
                    "last_exit": None,
                    "trouble": None,
                    "trouble_stderr": None,
                    "caps": [CAP, GOOD, CALL],
                    "pools": it.cartridge()["pools"],
                    "desired_capacities": {},
                }
            ],
            "debt": 0,
            "protocol": {
                "drops": {"total": 0, "by_reason": {}, "by_reason_frame_type": {}},
                "stragglers": {"total": 0, "by_frame_type": {}},
                "outgoing_rids": 0,
                "incoming_rxids": 1,
                "incoming_to_peer_rids": 0,
                "outgoing_max_seq": 1,
                "routing_gc_runs_total": 0,
                "routing_gc_evicted_total": 0,
            },
        }
        call.body(b"x")
        await call.succeeded()


ONE_STREAM = stream_debt(DEFAULT_LIMITS)


@LINKS
async def test_open_streams_are_bounded_together(link: str) -> None:
    """H42: past debt_limit a REQ and a STREAM_START are refused, live requests go on, and what ends gives back."""
    async with bench(record(), link=link, settings=msgspec.structs.replace(QUICK, debt_limit=2 * ONE_STREAM)) as it:
        first, second = it.relay.call(CAP), it.relay.call(CAP)
        first.start()
        second.start()
        await it.relay.until(lambda: it.host.snapshot()["debt"] == 2 * ONE_STREAM)
        refused = it.relay.call(CAP)
        assert "raise debt_limit" in await refused.failed("DEBT_LIMIT")
        assert failure_of(refused.terminals[0].meta).attribution is AttributionClass.RESOURCE
        first.start("another")
        await first.failed("DEBT_LIMIT")
        second.chunk(b"x")
        await it.relay.until(lambda: it.host.snapshot()["debt"] == ONE_STREAM)
        second.finish(1)
        assert await second.succeeded() == b"x"
        assert it.host.snapshot()["debt"] == 0


async def test_stream_of_an_answer_for_which_there_is_no_room_ends_its_request() -> None:
    """H42."""
    async with bench(record(), settings=msgspec.structs.replace(QUICK, debt_limit=ONE_STREAM)) as it:
        call = it.relay.call(CAP).body(b"x")
        await call.failed("DEBT_LIMIT")
        assert it.state() == "running"
        await it.relay.until(lambda: it.cartridge()["active"] == 0)
        assert it.host.snapshot()["debt"] == 0


async def test_call_for_which_there_is_no_room_is_refused() -> None:
    """H42."""
    async with bench(record(), settings=msgspec.structs.replace(QUICK, debt_limit=ONE_STREAM)) as it:
        call = it.relay.call(CALL).body(b"x")
        assert "debt_limit" in await call.failed("DEBT_LIMIT")


async def test_calls_of_one_cartridge_leave_room_for_its_neighbours(caplog: pytest.LogCaptureFixture) -> None:
    """H66: requests of strangers, too, take from what is free; calls may be three times what is left of it."""
    greedy, other = record(name="greedy"), record(name="other", caps=["cap:other"])
    async with bench(greedy, other, settings=msgspec.structs.replace(QUICK, debt_limit=16 * ONE_STREAM)) as it:
        it.relay.loops = False
        for _ in range(7):
            it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: it.host.snapshot()["debt"] == 14 * ONE_STREAM)
        for _ in range(2):
            assert "'greedy' may come to" in await it.relay.call(CALL).body(b"x").failed("DEBT_LIMIT")
        assert await it.relay.call("cap:other").body(b"y").succeeded() is not None
        assert "it is to end its calls" in it.cartridge("greedy")["trouble"]
        assert it.cartridge("other")["trouble"] is None
    assert caplog.text.count("it is to end its calls") == 1


async def test_calls_that_come_back_count_for_who_made_them() -> None:
    """H66."""
    async with bench(record(), settings=msgspec.structs.replace(QUICK, debt_limit=7 * ONE_STREAM)) as it:
        call = it.relay.call(CALL).body(b"x")
        assert await call.succeeded() == b"x"
        assert it.host.snapshot()["debt"] == 0
        assert [cartridge.owed for cartridge in it.host._roster] == [0]


async def test_calls_of_one_cartridge_leave_places_for_those_of_others() -> None:
    """H66."""
    async with bench(record(), settings=msgspec.structs.replace(QUICK, table_limit=8)) as it:
        it.relay.loops = False
        for _ in range(7):
            it.relay.call(CALL).body(b"x")
        await it.relay.until(lambda: it.protocol["outgoing_rids"] == 7)
        text = await it.relay.call(CALL).body(b"x").failed("TABLE_FULL")
        assert "7 calls of cartridge 'cart' are live, over 3 times the places left" in text
        assert "are live" in it.cartridge()["trouble"]


def test_debt_limit_below_one_stream_is_refused() -> None:
    """H42."""
    with pytest.raises(ConfigError, match="debt_limit must be at least one stream's window"):
        HostSettings(debt_limit=1)


A = b"a" * 16


def log(rid: bytes, size: int = 1000) -> FrameView:
    return view_of(log_frame(rid, LogRecord("progress", "x" * size, 0.5), xid=1))


def test_backlog_counts_what_is_queued_and_not_what_was_sent() -> None:
    """H43: a request whose frames are written as it sends more is never hit, however much it sends in all."""
    queue = [0]
    backlog = Backlog(lambda: queue[0])
    size = len(log(A).body)
    for _ in range(1000):
        assert backlog.admits(log(A))
        backlog.sent(0)
    queue[0] = 1
    count = 0
    while backlog.admits(log(A)):
        before, queue[0] = queue[0], queue[0] + size
        backlog.sent(before)
        count += 1
    assert count == LOG_LIMIT // size
    assert backlog.admits(log(b"b" * 16))
    before, queue[0] = queue[0], queue[0] + size
    backlog.sent(before)
    queue[0] -= 3 * size  # the reader takes three
    for expected in (True, True, False):
        assert backlog.admits(log(A)) is expected
        if expected:
            before, queue[0] = queue[0], queue[0] + size
            backlog.sent(before)
    queue[0] = 0
    assert backlog.admits(log(A))


def test_logs_leave_room_for_frames_whose_loss_would_end_their_request() -> None:
    """H43."""
    backlog = Backlog(lambda: 1)
    for _ in range(1000):
        backlog.admits(log(A))
    assert not backlog.admits(log(A))
    start = view_of(Frame(FrameType.STREAM_START, A, routing_id=1, stream_id="out", media_urn=f"media:{'x' * 1000}"))
    admitted = 0
    while backlog.admits(start):
        admitted += 1
    assert admitted >= (UNCREDITED_LIMIT - LOG_LIMIT) // len(start.body) > 50


class StalledRelay:
    """The far end of a host's socket, which writes and does not read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, *frames: Frame) -> None:
        self.sock.sendall(b"".join(pack(view_of(frame), DEFAULT_LIMITS.max_frame) for frame in frames))

    def ask(self, rid: bytes, cap: str) -> None:
        payload = encode_value(b"x")
        chunk = Frame(FrameType.CHUNK, rid, stream_id="arg", payload=payload, chunk_index=0, checksum=fnv1a_64(payload))
        start = Frame(FrameType.STREAM_START, rid, stream_id="arg", media_urn="media:")
        stop = Frame(FrameType.STREAM_END, rid, stream_id="arg", chunk_count=1)
        ask = Frame(FrameType.REQ, rid, cap=cap, content_type="application/cbor", payload=b"")
        for frame in (ask, start, chunk, stop, body_end := body_end_frame(rid)):
            frame.routing_id = 1
        self.send(ask, start, chunk, stop, body_end)

    def read_all(self) -> list[FrameView]:
        """Return what the host had to say, until it closes the link."""
        splitter, views = FrameSplitter(), []
        while data := self.sock.recv(1 << 20):
            views += [inspect(body) for body in splitter.feed(data)]
        return views


@pytest.mark.parametrize(
    ("misdeed", "code", "reason"),
    [("FloodsLogs", None, "overrun"), ("FloodsCredit", "PROTOCOL_VIOLATION", "protocol_violation")],
)
async def test_flood_toward_a_relay_that_does_not_read_is_bounded(misdeed: str, code: str | None, reason: str) -> None:
    """H43: LOG that does not fit is lost and its request lives; of other frames too many are the request's end."""
    near, far = socket.socketpair()
    relay, flooding, other = StalledRelay(far), b"f" * 16, b"o" * 16
    async with trio.open_nursery() as nursery:
        link = socket_link(near, "relay")
        often = msgspec.structs.replace(QUICK, republish_interval=0.01)
        host = HostRuntime([record(misdeed)], link, None, often)
        nursery.start_soon(link.run, host.receiver)
        await nursery.start(host.run)
        relay.send(policy_frame(NetworkPolicy.NO_TELEMETRY))
        relay.ask(flooding, CAP)
        relay.ask(other, GOOD)
        with trio.fail_after(PATIENCE):
            while True:
                await trio.sleep(0.01)
                now = host.snapshot()
                if now["cartridges"][0]["pid"] is not None and not now["protocol"]["incoming_rxids"]:
                    break
        assert host.snapshot()["protocol"]["drops"]["by_reason"][reason] > 0
        assert 0 < link.bytes_queued < UNCREDITED_LIMIT + READ_SIZE + 20_000
        unread = link.bytes_queued
        await trio.sleep(0.2)
        assert link.bytes_queued == unread, "H37: notices wait for a relay that does not read"
        views: list[FrameView] = []
        async with trio.open_nursery() as reading:
            reading.start_soon(lambda: trio.to_thread.run_sync(lambda: views.extend(relay.read_all())))
            await host.shutdown()
            link.close()
        nursery.cancel_scope.cancel()
    far.close()
    ends = {view.id: view.meta.get("code") for view in views if view.type in TERMINAL_TYPES}
    assert ends == {flooding: code, other: None}


async def test_what_waits_for_a_start_is_bounded() -> None:
    """H43."""
    async with bench(record("Silent"), record(name="other", caps=["cap:other"])) as it:
        call = it.relay.call(CAP)
        for _ in range(UNCREDITED_LIMIT // 20):
            call.close_stream("arg")
        assert "wait for cartridge 'cart' to read" in await call.failed("PROTOCOL_VIOLATION")
        assert await it.relay.call("cap:other").body(b"x").succeeded() == b"x"


@pytest.mark.parametrize("name", ["heartbeat_interval", "handshake_timeout", "cancel_grace_busy", "table_limit"])
def test_settings_have_the_defaults_of_the_contract(name: str) -> None:
    expected = {"heartbeat_interval": 30, "handshake_timeout": 30, "cancel_grace_busy": 30, "table_limit": 65_536}
    assert getattr(HostSettings(), name) == expected[name]
