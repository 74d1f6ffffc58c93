"""From spawn to the first request: HELLO, identity, POLICY, and what goes wrong before."""

from __future__ import annotations

import json

import pytest

from capdag.wire import (
    DEFAULT_LIMITS,
    IDENTITY_CAP,
    Frame,
    FrameType,
    Limits,
    NetworkPolicy,
    body_end_frame,
    hello_frame,
    pack,
    policy_frame,
    view_of,
)
from capdag.wire.manifest import read_manifest
from cartridges.echo import COUNT, ECHO
from tests.cartridge import stub_caps as stub
from tests.cartridge.driver import STUB_COMMAND, cartridge, chunk, end, req, start, whole_request


def test_hello_brings_reduced_limits_a_manifest_and_every_pool() -> None:
    asked = Limits(max_frame=1_000_000, max_chunk=500_000, max_reorder_buffer=10, initial_credit=50)
    with cartridge(limits=asked) as driver:
        hello = driver.hello()
    assert hello.limits == Limits(1_000_000, DEFAULT_LIMITS.max_chunk, 10, DEFAULT_LIMITS.initial_credit)
    manifest = read_manifest(hello.manifest)
    assert manifest.name == "echo"
    assert [str(entry.urn) for entry in manifest.caps] == [*list(hello.pools)[:-1]]
    assert list(hello.pools)[-1] == "all"
    assert set(hello.pools["all"].caps or ()) == set(hello.pools) - {"all", IDENTITY_CAP}


def test_the_manifest_declares_what_an_author_left_out() -> None:
    with cartridge() as driver:
        manifest = json.loads(driver.hello().manifest)
    (echo,) = [cap for cap in manifest["cap_groups"][0]["caps"] if cap["urn"] == ECHO]
    assert echo["args"] == [
        {"media_urn": "media:octets", "name": "input", "required": True, "sources": [{"stdin": "media:octets"}]}
    ]
    assert echo["outputs"] == [{"media_urn": "media:octets", "name": "output", "output_description": "Echo"}]
    assert {"channel": "release", "registry_url": None}.items() <= manifest.items()


def test_shared_pools_and_capacities_are_declared() -> None:
    with cartridge(STUB_COMMAND) as driver:
        hello = driver.hello()
    assert hello.pools["engine"].declared == hello.pools["engine"].configured == 2
    assert hello.pools["all"].declared == 3
    declared = json.loads(hello.manifest)["pool_declarations"]
    assert declared["pools"] == {"engine": list(hello.pools["engine"].caps or ())}
    assert declared["capacities"]["engine"] == 2


def test_identity_is_served_before_policy_and_keeps_the_type() -> None:
    with cartridge() as driver:
        driver.hello()
        frames = whole_request(5, IDENTITY_CAP, "media:", "bifaci", xid=77)
        driver.send(*frames)
        assert driver.terminal(5).type is FrameType.END
        assert {view.xid for view in driver.of(5)} == {77}
        (answer,) = driver.of(5, FrameType.CHUNK)
        assert answer.fields[6] == bytes.fromhex("66626966616369")
    with cartridge() as driver:
        driver.attach()  # the direct form: 32 bytes, no XID, seq 0 throughout


def test_other_caps_wait_for_policy() -> None:
    with cartridge() as driver:
        driver.hello()
        refused = driver.ask(1, ECHO)
        assert (refused.type, refused.meta["code"]) == (FrameType.ERR, "PROTOCOL_VIOLATION")
        driver.send(policy_frame(NetworkPolicy.OFFLINE))
        assert driver.ask(2, ECHO).type is FrameType.END


def test_the_policy_reaches_the_cartridge() -> None:
    with cartridge(STUB_COMMAND, env={"CAPDAG_CONFIG": '{"model": "tiny"}'}) as driver:
        driver.attach()
        driver.send(policy_frame(NetworkPolicy.FULL))
        driver.send(req(1, stub.REPORT), body_end_frame(1))
        driver.terminal(1)
        (answer,) = driver.of(1, FrameType.CHUNK)
    assert f"{stub.REPORT} {{'model': 'tiny'}} full".encode() in answer.fields[6]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([policy_frame(NetworkPolicy.FULL)], "the first frame must be HELLO, not POLICY"),
        ([hello_frame(DEFAULT_LIMITS._replace(initial_credit=0))], "limit initial_credit must be an integer above 0"),
        ([hello_frame(DEFAULT_LIMITS._replace(max_frame=100))], "max_frame of 100 is too small"),
        ([Frame(FrameType.HELLO, 0, meta={"version": 5})], "protocol version 5"),
        ([], "stdin ended before the host's HELLO"),
    ],
)
def test_a_failed_handshake_sends_nothing_and_says_why(frames: list[Frame], why: str) -> None:
    with cartridge() as driver:
        driver.send_bytes(b"".join(pack(view_of(frame), 10_000) for frame in frames))
        assert driver.close() == 1
        assert why in driver.stderr()
        assert driver.process.stdout.read() == b""


def test_a_second_hello_is_refused_with_its_id() -> None:
    with cartridge() as driver:
        driver.attach()
        driver.send(hello_frame(DEFAULT_LIMITS))
        refusal = driver.next()
        assert (refusal.type, refusal.id, refusal.meta["code"]) == (FrameType.ERR, 0, "PROTOCOL_ERROR")
        assert driver.ask(2, ECHO).type is FrameType.END


@pytest.mark.parametrize("kind", [FrameType.RELAY_NOTIFY, FrameType.RELAY_STATE])
def test_a_relay_frame_ends_the_process_with_code_1(kind: FrameType) -> None:
    with cartridge() as driver:
        driver.attach()
        driver.send(Frame(kind, 0))
        assert driver.exit_code() == 1
        assert kind.name in driver.stderr()


@pytest.mark.parametrize(
    "garbage", [b"Loading model...\n", b"\0\0\0\x01\xff", pack(view_of(policy_frame(NetworkPolicy.FULL)), 99)[:-3]]
)
def test_bytes_that_are_no_frame_end_it_as_stdin_does(garbage: bytes) -> None:
    with cartridge(STUB_COMMAND) as driver:
        driver.attach()
        driver.send(req(1, stub.HOLD))
        driver.next(lambda view: view.type is FrameType.LOG)
        driver.send_bytes(garbage)
        driver.process.stdin.close()
        assert driver.terminal(1).meta["code"] == "ABORTED"
        assert driver.exit_code() == 0
        assert "cartridge: " in driver.stderr()


@pytest.mark.parametrize("config", ["{", "[1]", '"text"', "nonsense"])
def test_settings_that_are_no_object_are_refused_before_hello(config: str) -> None:
    with cartridge(env={"CAPDAG_CONFIG": config}) as driver:
        driver.send(hello_frame(DEFAULT_LIMITS))
        assert driver.exit_code() == 2
        assert driver.process.stdout.read() == b""
        text = driver.stderr()
        assert "CAPDAG_CONFIG" in text
        assert "Traceback" not in text


def test_a_count_is_a_sequence_with_progress_and_item_meta() -> None:
    with cartridge() as driver:
        driver.attach()
        driver.send(req(3, COUNT), start(3, "media:count;enc=utf-8"), chunk(3, 0, b"a3"), end(3, 1), body_end_frame(3))
        assert driver.terminal(3).meta == {"exit_code": 0, "progress": 1.0}
        (head,) = driver.of(3, FrameType.STREAM_START)
        assert head.fields[17] is True
        assert [(view.fields[6], view.meta) for view in driver.of(3, FrameType.CHUNK)] == [
            (b"\x01", {"index": 0}),
            (b"\x02", {"index": 1}),
            (b"\x03", {"index": 2}),
        ]
        assert [view.meta["progress"] for view in driver.of(3, FrameType.LOG)] == [1 / 3, 2 / 3, 1.0]
        flow = [view.seq for view in driver.of(3) if view.type is not FrameType.CREDIT]
        assert flow == list(range(len(flow)))
