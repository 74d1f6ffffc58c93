"""Requests through a real process: values both ways under credit, and every way a request can fail."""

from __future__ import annotations

import random

import pytest

from capdag.errors import AttributionClass
from capdag.wire import (
    DEFAULT_LIMITS,
    Failure,
    Frame,
    FrameType,
    body_end_frame,
    encode_value,
    err_frame,
    is_success,
    scalar_payloads,
)
from cartridges.echo import ECHO, FAIL
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import (
    STUB_COMMAND,
    cartridge,
    chunk,
    end,
    req,
    sequence_payloads,
    start,
    whole_request,
)

MIB = 1 << 20


def test_an_answer_has_the_xid_of_its_request_and_counts_its_frames() -> None:
    with cartridge() as driver:
        driver.attach()
        driver.send(*whole_request(b"r" * 16, ECHO, "media:octets", b"hello", xid=9))
        assert driver.terminal(b"r" * 16).meta == {"exit_code": 0, "progress": 1.0}
        frames = [view.frame() for view in driver.of(b"r" * 16)]
        assert {frame.routing_id for frame in frames} == {9}
        head, piece, tail, last = (frame for frame in frames if frame.frame_type is not FrameType.CREDIT)
        assert [frame.seq for frame in (head, piece, tail, last)] == [0, 1, 2, 3]
        assert (head.media_urn, head.is_sequence, head.output) == ("media:octets", False, None)
        assert head.stream_id is not None
        name, salt, number = head.stream_id.split("-")
        assert (name, len(bytes.fromhex(salt)), number) == ("resp", 4, "0")
        assert (piece.payload, piece.chunk_index, tail.chunk_count) == (b"\x45hello", 0, 1)
        assert last.eof is True


@pytest.mark.parametrize("window", [1, 3, 32])
def test_megabytes_both_ways_whatever_the_window(window: int) -> None:
    data = random.Random(window).randbytes(3 * MIB + 17)
    limits = DEFAULT_LIMITS._replace(initial_credit=window, max_chunk=64 * 1024)
    with cartridge(limits=limits) as driver:
        driver.attach()
        answer = driver.exchange(1, ECHO, "media:octets", list(scalar_payloads(data, limits.max_chunk)))
        assert b"".join(answer.values["media:octets"]) == data
        assert max(len(view.fields.get(6, b"")) for view in answer.frames) == limits.max_chunk + 5
        granted = sum(view.fields[19] for view in answer.frames if view.type is FrameType.CREDIT)
        assert granted >= 49 - window


@pytest.mark.parametrize("window", [1, 3, 32])
def test_sequence_items_are_cut_and_joined(window: int) -> None:
    items = [{"n": 1}, b"x" * 5000, "y" * 999, list(range(300)), 0, None, [], b""]
    limits = DEFAULT_LIMITS._replace(initial_credit=window, max_chunk=1000)
    with cartridge(STUB_COMMAND, limits=limits) as driver:
        driver.attach()
        payloads = sequence_payloads(items, limits.max_chunk)
        answer = driver.exchange(1, stub.COLLECT, stub.ITEMS, payloads, sequence=True)
        assert answer.values[stub.ITEMS] == items
        chunks = [view for view in answer.frames if view.type is FrameType.CHUNK]
        assert max(len(view.fields[6]) for view in chunks) == limits.max_chunk
        assert [view.meta["n"] for view in chunks if view.meta] == list(range(len(items)))
        (head,) = [view for view in answer.frames if view.type is FrameType.STREAM_START]
        assert head.meta == {"sequence": True, "media": stub.ITEMS}


def test_every_kind_of_value_on_a_scalar_stream() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        answer = driver.exchange(1, stub.VALUES, "media:octets", [])
    assert answer.values[stub.TEXT_CANONICAL] == [b"abcd", "text", 7, 1.5, True, None, 1, "two", ["k", "v"], b"ef"]


def test_small_writes_of_bytes_are_joined() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        answer = driver.exchange(1, stub.TRICKLE, "media:octets", [])
    pieces = answer.values[stub.TEXT_CANONICAL]
    assert b"".join(pieces) == b"0123456789" * 1000
    assert len(pieces) < 200  # 3 when nothing disturbs; each 20 ms that somebody takes away gives one more


def test_a_handler_that_waits_for_more_holds_nothing_back() -> None:
    """Else a caller that waits for the echo before it says more would wait for ever."""
    with cartridge() as driver:
        driver.attach()
        driver.send(req(1, ECHO), start(1, "media:octets"))
        for number in range(3):
            driver.send(chunk(1, number, encode_value(b"%d" % number)))
            echoed = driver.next(lambda view: view.type is FrameType.CHUNK)
            assert echoed.fields[6] == encode_value(b"%d" % number)
        driver.send(end(1, 3), body_end_frame(1))
        assert driver.terminal(1).type is FrameType.END


def test_arguments_and_outputs_by_name() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(
            req(1, stub.TWO),
            start(1, stub.EXTRA, stream="b"),
            chunk(1, 0, encode_value("seen"), stream="b"),
            end(1, 1, stream="b"),
            start(1, stub.TEXT, stream="a"),
            chunk(1, 0, encode_value("main "), stream="a"),
            chunk(1, 1, encode_value(b"text"), stream="a"),
            end(1, 2, stream="a"),
            body_end_frame(1),
        )
        driver.terminal(1)
        heads = [view.fields for view in driver.of(1, FrameType.STREAM_START)]
        assert [(head[12], head.get(21)) for head in heads] == [
            (stub.TEXT_CANONICAL, None),
            (stub.NOTES_CANONICAL, stub.NOTES_CANONICAL),
            ("media:empty", "media:empty"),
        ]
        assert [view.fields[6] for view in driver.of(1, FrameType.CHUNK)] == [
            encode_value("main text"),
            encode_value("seen no option"),
        ]
        assert [view.fields[15] for view in driver.of(1, FrameType.STREAM_END)] == [1, 1, 0]


def test_a_void_cap_opens_nothing() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.VOID), body_end_frame(1))
        driver.terminal(1)
        assert [view.type for view in driver.of(1)] == [FrameType.END]


def test_a_wider_cap_serves_a_narrower_request() -> None:
    with cartridge() as driver:
        driver.attach()
        asked = 'cap:echo;in="media:octets;png";out=media:octets'
        assert driver.ask(1, asked, "media:octets;png").type is FrameType.END


def refusal(frame: Frame, policy: bool = True) -> tuple[str, str]:
    """Send one frame and return code and class of the ERR it gets."""
    with cartridge(STUB_COMMAND) as driver:
        driver.attach() if policy else driver.hello()
        driver.send(frame)
        answer = driver.terminal(frame.id)
        return answer.meta["code"], answer.meta["attribution_class"]


def test_requests_that_are_refused() -> None:
    assert refusal(Frame(FrameType.REQ, 1)) == ("INVALID_REQUEST", "input")
    assert refusal(Frame(FrameType.REQ, 1, cap=stub.READ, payload=b"\x80")) == ("PROTOCOL_ERROR", "internal")
    assert refusal(req(1, "cap:nobody-has-this;in=media:octets")) == ("NO_HANDLER", "environment")
    assert refusal(req(1, "no cap URN " + "x" * 100_000)) == ("NO_HANDLER", "environment")
    assert refusal(req(1, stub.READ), policy=False) == ("PROTOCOL_VIOLATION", "internal")


def test_a_request_id_is_live_once() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.READ, xid=1), req(1, stub.READ, xid=2))
        assert driver.terminal(1).xid == 2
        driver.send(body_end_frame(1))
        assert driver.next(lambda view: view.type is FrameType.ERR).xid == 1


def failure_of_body(frames: list[Frame], cap: str = stub.READ) -> Failure:
    """Send a REQ and what follows; return the failure the request ends with."""
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, cap), *frames)
        meta = driver.terminal(1).meta
        assert driver.ask(2, stub.READ).type is FrameType.END, "the next request must go well"
        return Failure(meta["code"], AttributionClass(meta["attribution_class"]), meta["message"], meta.get("detail"))


HEAD = start(1, "media:octets")
BYTES = encode_value(b"ten bytes!")
WRONG_CHECKSUM = Frame(FrameType.CHUNK, 1, stream_id="arg-0", payload=BYTES, chunk_index=0, checksum=1)
AN_OUTPUT = Frame(FrameType.STREAM_START, 1, stream_id="a", media_urn="media:octets", output="media:octets")


@pytest.mark.parametrize(
    ("frames", "code", "why"),
    [
        ([HEAD, *[chunk(1, n, BYTES) for n in range(33)]], "CREDIT_VIOLATION", "without credit"),
        ([HEAD, WRONG_CHECKSUM], "PROTOCOL_VIOLATION", "checksum"),
        ([HEAD, chunk(1, 7, BYTES)], "PROTOCOL_VIOLATION", "CHUNK 7 came where 0 was due"),
        ([chunk(1, 0, BYTES)], "PROTOCOL_VIOLATION", "never started"),
        ([HEAD, chunk(1, 0, b"\xff")], "PROTOCOL_VIOLATION", "not one strict CBOR item"),
        ([HEAD, end(1, 99)], "PROTOCOL_VIOLATION", "chunk_count 99 after 0"),
        ([HEAD, body_end_frame(1)], "PROTOCOL_VIOLATION", "'arg-0' is open"),
        ([HEAD, HEAD], "PROTOCOL_VIOLATION", "a second STREAM_START"),
        ([body_end_frame(1)], "INVALID_REQUEST", "'media:octets' is required and was not sent"),
        ([HEAD, start(1, "media:octets", stream="b")], "INVALID_REQUEST", "came twice"),
        ([start(1, "no media URN")], "INVALID_REQUEST", "is not a media URN"),
        ([AN_OUTPUT], "INVALID_REQUEST", "names an output"),
        ([HEAD, chunk(1, 0, b"\x07"), end(1, 1), body_end_frame(1)], "INVALID_REQUEST", "bytes or text, not int"),
        ([HEAD, err_frame(1, Failure("UPSTREAM", AttributionClass.RESOURCE, "gone"))], "UPSTREAM", "gone"),
    ],
)  # fmt: skip
def test_a_bad_body_costs_its_own_request(frames: list[Frame], code: str, why: str) -> None:
    failure = failure_of_body(frames, stub.LAZY if code == "CREDIT_VIOLATION" else stub.READ)
    assert (failure.code, why in failure.message) == (code, True), failure


def test_a_req_under_a_live_id_costs_the_first_nothing() -> None:
    """With the XID of the first it is dropped and counted, as an ERR would end the first; with another, refused."""
    with cartridge() as driver:
        driver.attach()
        first = whole_request(1, ECHO, "media:octets", b"hello", xid=9)
        driver.send(*first[:2], req(1, ECHO, xid=9), req(1, ECHO, xid=10))
        refusal = driver.terminal(1)
        assert (refusal.xid, refusal.meta["code"]) == (10, "PROTOCOL_VIOLATION")
        assert driver.heartbeat(2).meta["drops_total"] == 1
        driver.send(*first[2:])
        ended = driver.next(lambda view: view.id == 1 and view.type is FrameType.END)
        assert (ended.xid, is_success(ended.meta)) == (9, True)


def test_a_heartbeat_with_the_meta_of_a_reply_is_not_answered() -> None:
    """L45: a host that sends the reply back would be sent another, and so on."""
    with cartridge() as driver:
        driver.attach()
        reply = driver.heartbeat(50)
        driver.send(Frame(FrameType.HEARTBEAT, 50, meta=dict(reply.meta)))
        assert driver.heartbeat(51).meta["drops_total"] == 1
        assert [view.id for view in driver.frames if view.type is FrameType.HEARTBEAT] == [50, 51]


def test_an_argument_that_nobody_declared_is_refused() -> None:
    failure = failure_of_body([start(1, "media:octets")], stub.WAIT)
    assert failure.code == "INVALID_REQUEST"
    assert failure.detail == {"param": "media:octets"}


def test_what_a_handler_raises() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        assert driver.ask(1, stub.ERROR).meta == {
            "code": "TOO_HOT",
            "message": "temperature must be at most 2",
            "attribution_class": "input",
            "detail": {"param": "temperature", "limit": 2, "seen": 3, "retryable": False},
        }
        boom = driver.ask(2, stub.BOOM).meta
        assert (boom["code"], boom["attribution_class"]) == ("HANDLER_ERROR", "internal")
        assert boom["message"].startswith("ValueError: boom ooo")
        assert len(boom["message"]) < 5_000
        assert driver.ask(3, stub.QUIT).meta["message"] == "SystemExit: 3"
        driver.send(req(4, stub.WRONG_KIND), body_end_frame(4))
        assert "a sequence: use item" in driver.terminal(4).meta["message"]
        unspeakable = driver.ask(5, stub.UNSPEAKABLE).meta
        assert (unspeakable["code"], unspeakable["attribution_class"]) == ("TOO_HOT", "input")
        assert unspeakable["message"] == "temperature must be at most 2"
        assert unspeakable["detail"]["seen"].startswith("<object object at ")
        driver.close()
        assert "ValueError: boom" in driver.stderr()


def test_the_echo_cartridge_fails_when_asked_to() -> None:
    with cartridge() as driver:
        driver.attach()
        media = "media:failure;enc=utf-8"
        assert driver.ask(1, FAIL, media, "NO_LUCK user the dice fell badly").meta == {
            "code": "NO_LUCK",
            "attribution_class": "user",
            "message": "the dice fell badly",
        }
        assert driver.ask(2, FAIL, media, "what").meta["code"] == "INVALID_REQUEST"
        assert "attribution must be one of" in driver.ask(3, FAIL, media, "A B C").meta["message"]


def test_nothing_goes_out_after_the_terminal() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.ask(1, stub.LATE)
        assert driver.silent(0.3)
        driver.send(Frame(FrameType.HEARTBEAT, 50))
        assert driver.next(lambda view: view.type is FrameType.HEARTBEAT).meta["stragglers_total"] == 3


def test_an_answer_may_end_before_its_body_does() -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.ERROR))
        driver.terminal(1)
        driver.send(HEAD, chunk(1, 0, BYTES), end(1, 1), body_end_frame(1), Frame(FrameType.HEARTBEAT, 50))
        meta = driver.next(lambda view: view.type is FrameType.HEARTBEAT).meta
        assert (meta["stragglers_total"], meta["drops_total"]) == (4, 0)
        driver.send(chunk(99, 0, BYTES), Frame(FrameType.HEARTBEAT, 51))
        assert driver.next(lambda view: view.id == 51).meta["drops_total"] == 1
