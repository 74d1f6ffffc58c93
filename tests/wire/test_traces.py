"""Every recorded conversation of the public package: its bytes, and what our machines say to each frame."""

from __future__ import annotations

from collections import defaultdict

import pytest

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    FLOW_TYPES,
    FrameType,
    IdentityCheck,
    decode_frame,
    deferred_identity_request,
    encode_frame,
    hello_frame,
    identity_request,
    read_cartridge_hello,
    view_of,
)
from capdag.wire.conversation import Conversation
from capdag.wire.life import Verdict
from capdag.wire.link_life import LinkState

from .traces import NAMES, Recorded, recorded

DEPARTURES: dict[str, dict[int, tuple[str, str]]] = {
    # trace: frame: (what ours does with it, why)
    "08_cancel_cooperative": {65: ("drop", "a CANCEL for an id that never was: both ignore it, ours counts it")},
    "13a_heartbeat_cartridge": {
        8: ("drop", "an ERR that refuses a heartbeat has the probe's id: it is no request's terminal"),
    },
    "14b_before_policy": {
        1: ("refuse", "the subject of the trace: a REQ before POLICY"),
        2: ("drop", "the ERR that refuses it: to whoever watches, the request never began"),
    },
    "18_cartridge_protocol_errors": {
        41: ("CREDIT_VIOLATION", "33 CHUNKs in a window of 32: refused at once, not when the handler comes to read"),
        49: ("wrong checksum", "refused at once, as a PROTOCOL_VIOLATION and not the handler's error"),
        56: ("inside an item", "the same"),
        61: ("CHUNK 7 came where 0 was due", "the package takes chunk_index and chunk_count as they come"),
        81: ("refuse", "the subject of the trace: a second HELLO"),
        82: ("drop", "the ERR that refuses it"),
    },
    "22_in_process_host": {
        22: ("drop", "a switch sends no heartbeats; ours counts them, the package's in-process host answers"),
        23: ("drop", "that answer"),
    },
}

UNFINISHED = {
    "11_peer_call_one_host": {"relay:m0": 1, "cart:A": 2},  # the package never completes a call within one host
    "12_crash_mid_request": {"cart:A": 1},  # the process is gone
    "21_relay_slave_state": {"slave-local": 2},  # only one direction of this link was recorded
}


def judge(conversation: Conversation, frame: Recorded) -> str:
    """Give a frame to the machines; returns `take`, `drain`, `straggler`, `drop`, `refuse`, or the violation's text."""
    drops = conversation.counts.drops.total()
    view = frame.view()
    try:
        verdict = conversation.take(frame.direction, view)
    except RemoteProtocolError as error:
        return str(error)
    if verdict is Verdict.COUNT:
        return "drop" if conversation.counts.drops.total() > drops else "straggler"
    return verdict.value


def joined(name: str, frame: Recorded) -> Conversation:
    """Return a conversation for the channel of its first frame, which may have begun before the trace."""
    greets = frame.fields["type"] in ("HELLO", "RELAY_NOTIFY", "POLICY")
    begun = LinkState.GREETED if name == "14b_before_policy" else LinkState.OPEN
    return Conversation(frame.kind, state=LinkState.SILENT if greets else begun)


@pytest.mark.parametrize("name", NAMES)
def test_the_machines_accept_the_conversation(name: str) -> None:
    conversations: dict[str, Conversation] = {}
    found: dict[int, str] = {}
    for frame in recorded(name):
        if frame.channel not in conversations:
            conversations[frame.channel] = joined(name, frame)
        word = judge(conversations[frame.channel], frame)
        if word not in ("take", "drain", "straggler"):
            found[frame.number] = word
    expected = DEPARTURES.get(name, {})
    assert found.keys() == expected.keys()
    assert [number for number, (word, _) in expected.items() if word not in found[number]] == []
    live = {channel: len(one) for channel, one in conversations.items() if len(one)}
    assert live == UNFINISHED.get(name, {})


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_decodes_and_encodes_to_the_same_bytes(name: str) -> None:
    whole = [frame for frame in recorded(name) if frame.body is not None]
    assert whole
    for frame in whole:
        assert frame.body is not None
        decoded = decode_frame(frame.body)
        assert decoded.frame_type.name == frame.fields["type"]
        decoded.raw = None
        assert encode_frame(decoded) == frame.body, frame.number


def test_how_much_the_traces_hold() -> None:
    frames = [frame for name in NAMES for frame in recorded(name)]
    assert (len(NAMES), len(frames), sum(frame.body is not None for frame in frames)) == (27, 1409, 1127)


@pytest.mark.parametrize("name", NAMES)
def test_seq_counts_from_0_in_each_flow(name: str) -> None:
    """Back at 0: an identity check (0 on all its frames), an ERR that the package's host makes up (departure: ours
    counts on), or the answer of a call that comes back to where it was made, under the ids of its body."""
    last: defaultdict[tuple[object, ...], int] = defaultdict(lambda: -1)
    for frame in recorded(name):
        if FrameType(frame.fields["frame_type"]) in FLOW_TYPES:
            flow = (frame.channel, frame.direction, frame.fields["id"], frame.fields.get("routing_id"))
            assert frame.fields["seq"] in (last[flow] + 1, 0), frame.number
            last[flow] = frame.fields["seq"]


def test_our_hello_is_the_hosts_byte_for_byte() -> None:
    theirs = next(recorded("01_handshake_identity"))
    assert encode_frame(hello_frame(DEFAULT_LIMITS)) == theirs.body


def test_a_hello_of_ours_has_what_the_cartridges_has_in_the_same_order() -> None:
    _, theirs, *_ = (frame.view() for frame in recorded("01_handshake_identity"))
    hello = read_cartridge_hello(theirs)
    ours = hello_frame(hello.limits, manifest=hello.manifest, pools=hello.pools)
    assert list(ours.meta or {}) == list(theirs.meta)
    assert read_cartridge_hello(view_of(ours)) == hello


@pytest.mark.parametrize(
    ("name", "first", "answers", "deferred"),
    [
        ("01_handshake_identity", 3, (8, 9, 10, 11), False),
        ("15_relay_attach", 3, (8, 9, 10, 11), False),
        ("22_in_process_host", 3, (8, 9, 10, 11), False),
        ("16_relay_deferred_probe", 16, (30, 31, 32, 33), True),
    ],
)
def test_our_identity_check_is_the_packages(name: str, first: int, answers: tuple[int, ...], deferred: bool) -> None:
    frames = {frame.number: frame for frame in recorded(name)}
    way = (frames[first].channel, frames[first].direction)
    asked = [one for one in frames.values() if (one.channel, one.direction) == way and one.number >= first]
    sent = [one.view().frame() for one in asked[:5]]
    payload = sent[2].payload or b""
    ours = (
        deferred_identity_request(sent[0].id, sent[0].routing_id or 0)
        if deferred
        else identity_request(sent[0].id, payload[2:])
    )
    assert [encode_frame(frame) for frame in ours] == [encode_frame(frame) for frame in sent]
    check = IdentityCheck(deferred=True) if deferred else IdentityCheck(payload[2:])
    assert [check.feed(frames[number].view()) for number in answers] == [False, False, False, True]
