"""The switch against recorded conversations of the public package: what its hosts sent is replayed, and what our
switch sends must be what the public one sent.

Where a trace shows a fault of the public switch, the test says what ours does instead.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from capdag.relay import Request, Switch, SwitchSettings, open_switch
from capdag.wire import (
    FrameType,
    FrameView,
    NetworkPolicy,
    decode_value,
    encode_value,
    fnv1a_64,
    inspect,
    read_cancel,
)
from capdag.wire.frame import FIELD_NAMES
from tests.relay.masters import IDENTITY, Caller, LinkKind, Master, connected, ready, until
from tests.vectors import FOLDER

Fields = dict[int, Any]


def relay_frames(name: str) -> list[tuple[str, str, Fields]]:
    """Return (channel, direction, fields) of each frame between switch and hosts."""
    trace = json.loads((FOLDER / "traces" / f"{name}.json").read_text())
    return [
        (frame["chan"], frame["dir"], _fields(frame)) for frame in trace["frames"] if frame["chan"].startswith("relay")
    ]


def _fields(frame: dict[str, Any]) -> Fields:
    """Return the fields of a recorded frame. Long ones are kept in part: a notice's JSON, the head of a payload."""
    if "hex" in frame:
        fields: Fields = decode_value(bytes.fromhex(frame["hex"]))
        return fields
    shown = frame["fields"]
    if shown["type"] == "RELAY_NOTIFY":
        manifest = json.dumps(shown["meta"]["manifest"]["json_bytes"]).encode()
        return {0: 6, 1: int(FrameType.RELAY_NOTIFY), 2: 0, 3: 0, 5: {**shown["meta"], "manifest": manifest}}
    head = bytes.fromhex(shown["payload"]["hex_head"])
    payload = head.ljust(shown["payload"]["len"], head[-1:])
    assert fnv1a_64(payload) == shown["checksum"]
    keys = {name: key for key, name in FIELD_NAMES.items()}
    fields = {keys[name]: value for name, value in shown.items() if name in keys}
    return {**fields, 2: bytes.fromhex(shown["id"]), 6: payload}


class Replay:
    """Plays the hosts and the engine of a trace against our switch. RIDs of ours stand in for those of the trace."""

    def __init__(self, switch: Switch, masters: dict[str, Master]) -> None:
        self.switch = switch
        self.masters = masters
        self.requests: dict[object, tuple[Request, Caller]] = {}
        self._ids: dict[object, object] = {0: 0}
        self._own_calls: set[object] = set()
        self._checks: dict[object, bytes] = {}

    async def play(self, frames: list[tuple[str, str, Fields]], *, unsent: frozenset[int] = frozenset()) -> None:
        """Replay; the frames at the indexes `unsent` are those that our switch must not send."""
        for index, (channel, direction, fields) in enumerate(frames):
            master = self.masters[channel]
            if direction == "host->switch":
                master.send(self._as_host(fields))
            elif index not in unsent:
                await wait_all_tasks_blocked()
                self._as_engine(fields)
                self._compare(await master.next(), fields)

    def _as_host(self, fields: Fields) -> FrameView:
        if fields[1] == FrameType.REQ:
            self._own_calls.add(fields[2])
            self._ids[fields[2]] = fields[2]
        sent = {**fields, 2: self._ids[fields[2]]}
        if fields[1] == FrameType.CHUNK and fields[2] in self._checks:
            sent[6] = self._checks[fields[2]]
            sent[16] = fnv1a_64(sent[6])
        return inspect(encode_value(sent))

    def _as_engine(self, fields: Fields) -> None:
        rid, kind = fields[2], FrameType(fields[1])
        if kind is FrameType.REQ and fields[10] != IDENTITY and rid not in self._own_calls:
            caller = Caller()
            self.requests[rid] = self.switch.open_request(fields[10], caller), caller
        elif rid in self.requests and kind is FrameType.CANCEL:
            self.requests[rid][0].cancel(read_cancel(fields[5]), force_kill=fields[18])
        elif rid in self.requests:
            request = self.requests[rid][0]
            frame = inspect(encode_value(fields)).frame()
            frame.id = request.rid
            request.send([frame])

    def _compare(self, view: FrameView, expected: Fields) -> None:
        rid = self._ids.setdefault(expected[2], view.id)
        expected = {**expected, 2: rid}
        seen = dict(view.fields)
        if view.type is FrameType.CHUNK and rid != 0 and expected[11] == "identity-verify":
            self._checks[next(old for old, new in self._ids.items() if new == rid)] = seen[6]
            for key in (6, 16):
                expected.pop(key), seen.pop(key)
        assert seen == expected

    def answers(self) -> list[list[str]]:
        """Return the types that each request of the engine got, in order of the requests."""
        return [[kind.name for kind in caller.types] for _, caller in self.requests.values()]


def engine_sees(frames: list[tuple[str, str, Fields]]) -> list[list[str]]:
    """Return what hosts sent to each request of the engine, as types."""
    seen: dict[object, list[str]] = {}
    own_calls = {fields[2] for _, direction, fields in frames if direction == "host->switch" and fields[1] == 1}
    for _, direction, fields in frames:
        if direction == "switch->host" and fields[1] == 1 and fields[10] != IDENTITY and fields[2] not in own_calls:
            seen[fields[2]] = []
        elif direction == "host->switch" and fields[2] in seen:
            seen[fields[2]].append(FrameType(fields[1]).name)
    return list(seen.values())


FULL = SwitchSettings(policy=NetworkPolicy.FULL)


@asynccontextmanager
async def attached(kind: LinkKind, caps: dict[str, list[str]]) -> AsyncIterator[Replay]:
    """A switch with a ready host for each channel."""
    async with open_switch(FULL) as switch, AsyncExitStack() as stack:
        masters = {
            channel: await stack.enter_async_context(ready(switch, channel, kind, *offered))
            for channel, offered in caps.items()
        }
        yield Replay(switch, masters)


def caps_of(frames: list[tuple[str, str, Fields]]) -> dict[str, list[str]]:
    """Return the caps that each channel was asked for."""
    caps: dict[str, list[str]] = {channel: [] for channel, _, _ in frames}
    for channel, direction, fields in frames:
        if direction == "switch->host" and fields[1] == 1 and fields[10] not in caps[channel]:
            caps[channel].append(fields[10])
    return caps


@pytest.mark.parametrize("name", ["02_small_request", "10_peer_call_two_hosts", "11_peer_call_one_host"])
async def test_requests_and_peer_calls(kind: LinkKind, clock: MockClock | None, name: str) -> None:
    frames = relay_frames(name)
    async with attached(kind, caps_of(frames)) as replay:
        await replay.play(frames)
        await until(lambda: replay.answers() == engine_sees(frames))
        snapshot = replay.switch.snapshot()
        assert snapshot["drops"]["total"] == snapshot["stragglers"]["total"] == 0
        # In trace 11 the public host loses the answer: the engine's request is left waiting.
        assert len(snapshot["requests"]["active"]) == (1 if name.startswith("11") else 0)


async def test_cancel_keeps_the_row_until_the_terminal(kind: LinkKind, clock: MockClock | None) -> None:
    """The public host ignores CANCEL, and the public switch tells its caller nothing: ours gives the terminal."""
    frames = relay_frames("09b_cancel_via_switch_and_host")
    async with attached(kind, caps_of(frames)) as replay:
        await replay.play(frames)
        await until(lambda: not replay.switch.snapshot()["requests"]["active"])
        assert replay.answers() == [[*["LOG"] * 5, "END"]] * 2
        snapshot = replay.switch.snapshot()
        assert snapshot["stragglers"]["total"] == 0
        assert snapshot["drops"]["by_reason_frame_type"] == {
            "cancelled": {"log": 10, "stream_start": 2, "chunk": 2, "stream_end": 2}
        }
        for ended in snapshot["requests"]["recent_terminated"]:
            assert (ended["cancel_code"], ended["cancel_class"]) == ("CANCELLED", "user")
            assert (ended["bytes_in"], ended["bytes_out"]) == (6, 4)


async def test_a_crash_reaches_the_caller(kind: LinkKind, clock: MockClock | None) -> None:
    """The public switch takes the host's ERR without XID for a body and sends it back (the trace's last frame)."""
    frames = relay_frames("12_crash_mid_request")
    async with attached(kind, caps_of(frames)) as replay:
        await replay.play(frames, unsent=frozenset([len(frames) - 1]))
        await until(lambda: not replay.switch.snapshot()["requests"]["active"])
        ((_, caller),) = replay.requests.values()
        assert caller.terminals[0].meta["code"] == "CARTRIDGE_DIED"
        assert replay.masters["relay:m0"].untaken() == []


@pytest.mark.parametrize("name", ["15_relay_attach", "16_relay_deferred_probe"])
async def test_attaching(kind: LinkKind, clock: MockClock | None, name: str) -> None:
    frames = relay_frames(name)
    async with open_switch(FULL) as switch, connected(switch, "relay:m0", kind) as master:
        replay = Replay(switch, {"relay:m0": master})
        await replay.play(list(_policy_first(frames)))
        await until(lambda: replay.answers() == engine_sees(frames))
        assert switch.snapshot()["hosts"]["relay:m0"]["state"] == "ready"
        assert switch.snapshot()["drops"]["total"] == 0


def _policy_first(frames: list[tuple[str, str, Fields]]) -> Iterator[tuple[str, str, Fields]]:
    """The public switch sends POLICY when the notice has come, ours as soon as the link is there."""
    policy = next(frame for frame in frames if frame[2][1] == FrameType.POLICY)
    yield policy
    yield from (frame for frame in frames if frame is not policy)
