"""Errors quote what was sent, and only its beginning: they go on in ERR frames, logs and answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    Frame,
    FrameType,
    InStreams,
    failure_of,
    inspect,
    read_failure,
    read_hello,
    read_log,
    read_pools,
    view_of,
)
from capdag.wire.manifest import read_manifest
from capdag.wire.notify import read_notify

LONG = "x" * 100_000
LIMITS = {"version": 6, "max_frame": 1, "max_chunk": 1, "max_reorder_buffer": 1, "initial_credit": 1}


def body(kind: FrameType, meta: dict[str, Any]) -> bytes:
    return cbor2.dumps({0: 6, 1: int(kind), 2: 0, 5: meta})


def notice(record: Any) -> None:
    manifest = json.dumps({"installed_cartridges": [record]}).encode()
    read_notify(inspect(body(FrameType.RELAY_NOTIFY, {**LIMITS, "manifest": manifest})))


def manifest(**changes: Any) -> None:
    good = {"name": "m", "version": "1", "channel": "release", "registry_url": None, "description": ""}
    read_manifest(json.dumps({**good, "cap_groups": [], **changes}).encode())


def stream(*frames: Frame) -> None:
    streams = InStreams(1)
    for view in map(view_of, frames):
        if view.type is FrameType.STREAM_START:
            streams.start(view)
        elif view.type is FrameType.CHUNK:
            streams.of(view).chunk(view)
        else:
            streams.of(view).end(view)


START = Frame(FrameType.STREAM_START, 0, stream_id=LONG, media_urn="media:")
CHUNK = Frame(FrameType.CHUNK, 0, stream_id=LONG, payload=b"\x00", chunk_index=1, checksum=0)
END = Frame(FrameType.STREAM_END, 0, stream_id=LONG, chunk_count=1)

SENT: dict[str, Callable[[], object]] = {
    "a key": lambda: inspect(cbor2.dumps({LONG: 1})),
    "a value": lambda: inspect(cbor2.dumps({0: 6, 1: 4, 2: 0, 4: [LONG]})),
    "an unknown key": lambda: inspect(cbor2.dumps({0: 6, 1: 4, 2: 0, 22: [LONG, cbor2.undefined]})),
    "a policy": lambda: inspect(body(FrameType.POLICY, {"network": LONG})),
    "a version": lambda: read_hello(inspect(body(FrameType.HELLO, {**LIMITS, "version": LONG}))),
    "a limit": lambda: read_hello(inspect(body(FrameType.HELLO, {**LIMITS, "max_frame": LONG}))),
    "a code": lambda: read_failure({"code": LONG, "message": "m"}),
    "a code that is none": lambda: read_failure({"code": [LONG], "message": "m"}),
    "a class": lambda: read_failure({"code": "X", "message": "m", "attribution_class": LONG}),
    "a LOG": lambda: read_log({"level": LONG, "message": "m", "attribution_class": LONG}),
    "a level": lambda: read_log({"level": LONG, "message": "m"}),
    "a pool": lambda: read_pools(json.dumps({LONG: 1}).encode()),
    "a count": lambda: read_pools(json.dumps({"all": {"declared": LONG}}).encode()),
    "a channel": lambda: manifest(channel=LONG),
    "a group": lambda: manifest(cap_groups=[{"name": LONG, "caps": [1]}]),
    "a cap": lambda: manifest(cap_groups=[{"name": "g", "caps": [{"urn": LONG}]}]),
    "a name": lambda: manifest(name=[LONG]),
    "an install": lambda: notice({"channel": LONG, "runtime_stats": {}}),
    "an offer": lambda: notice(
        {"channel": "release", "registry_url": None, "runtime_stats": {}, "cap_groups": [{"caps": [{"urn": LONG}]}]}
    ),
    "groups": lambda: notice({"channel": "release", "registry_url": None, "runtime_stats": {}, "cap_groups": LONG}),
    "a registry": lambda: notice({"channel": "release", "registry_url": [LONG], "runtime_stats": {}}),
    "an install without a registry": lambda: notice({"id": LONG, "channel": "release", "runtime_stats": {}}),
    "a stream that is not there": lambda: stream(CHUNK),
    "a stream that is there": lambda: stream(START, START),
    "a stream out of order": lambda: stream(START, CHUNK),
    "a stream that is too short": lambda: stream(START, END),
}


@pytest.mark.parametrize("read", SENT.values(), ids=SENT)
def test_a_long_value_is_quoted_in_part(read: Callable[[], object]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        read()
    assert len(str(caught.value)) < 1000
    assert "xxx" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({0: 6, 1: 4, 2: 0, 22: cbor2.undefined}, "key 22 of frame type 4 holds .* undefined, which no frame may"),
        ({0: 6, 1: 4, 2: 0, "a": 1}, "frame type 4 has the key 'a' of type str: keys are integers"),
        ({0: 6, 1: 4}, "frame type 4 needs key 2 .id."),
        ({0: 6, 2: 0}, "frame type None needs key 1 .frame_type."),
        ({0: 6, 1: 4, 2: b"", 3: 1}, "key 2 .id. of frame type 4 must be 16 bytes or an unsigned .*, not bytes b''"),
        ({0: 6, 1: 13, 2: 0, 19: None}, "CREDIT needs key 19 .credit."),
        ({0: 6, 1: 4, 2: 0, 21: "a"}, "key 21 .output. belongs to STREAM_START, not END"),
    ],
)
def test_a_frame_that_breaks_a_rule_is_told_which(fields: dict[Any, Any], said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        inspect(cbor2.dumps(fields))


def test_an_err_that_is_none_makes_a_failure_that_can_be_sent_on() -> None:
    assert len(failure_of({"code": bytes(1_000_000), "message": "m"}).message) < 1000
