"""A host's way onto the switch, and off it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from capdag.errors import RequestFailedError
from capdag.relay import Switch, SwitchSettings, open_switch
from capdag.wire import (
    DEFAULT_LIMITS,
    Frame,
    FrameType,
    NetworkPolicy,
    decode_value,
    encode_value,
    err_frame,
    hello_frame,
    policy_frame,
)
from capdag.wire.meta import Failure
from capdag.wire.notify import notify_frame
from tests.relay.masters import (
    ECHO,
    IDENTITY,
    UPPER,
    Answer,
    Caller,
    LinkKind,
    Master,
    connected,
    install,
    ready,
    until,
)

QUICK = SwitchSettings(identity_timeout=0.2)


def states(switch: Switch) -> dict[str, str]:
    return {name: host["state"] for name, host in switch.snapshot()["hosts"].items()}


def caps(switch: Switch) -> list[str]:
    return [capability.text for capability in switch.capabilities()]


async def test_a_cap_that_an_install_names_twice_is_told_once(kind: LinkKind, clock: MockClock | None) -> None:
    """S13: a caller that goes by an alias would have two to choose from."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO, UPPER, ECHO):
        assert caps(switch)[1:] == [ECHO, UPPER]


async def test_policy_goes_first_then_the_identity_check(kind: LinkKind, clock: MockClock | None) -> None:
    """S1, S5."""
    settings = SwitchSettings(policy=NetworkPolicy.OFFLINE)
    async with open_switch(settings) as switch, connected(switch, "m0", kind) as master:
        policy = await master.next(FrameType.POLICY)
        assert policy.meta == {"network": "offline"}
        master.notify(ECHO)
        check = [await master.next() for _ in range(5)]
        assert [view.type.name for view in check] == ["REQ", "STREAM_START", "CHUNK", "STREAM_END", "END"]
        assert {(view.seq, view.xid) for view in check} == {(0, None)}
        assert check[0].fields[10] == IDENTITY
        assert len(decode_value(check[2].fields[6])) == 32
        assert states(switch) == {"m0": "checking"}
        assert caps(switch) == []
        answer = Answer(check[0].id, None)
        master.send(answer.start(), answer.chunk(check[2].fields[6]), answer.stream_end(), answer.end())
        await switch.wait_for(ECHO)
        assert states(switch) == {"m0": "ready"}
        assert caps(switch) == [IDENTITY, ECHO]


async def test_capabilities_tell_what_and_where(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, connected(switch, "box", kind) as master:
        master.send(notify_frame(DEFAULT_LIMITS, [install(ECHO, name="echo/1", title="Echo", metadata={"model": "M"})]))
        await master.answer_identity()
        await switch.wait_for(ECHO)
        capability = switch.capabilities()[1]
        assert (capability.text, str(capability.urn)) == (ECHO, ECHO)
        assert capability.facts == {"urn": ECHO, "title": "Echo", "metadata": {"model": "M"}}
        assert (capability.install_id, capability.host) == ("echo/1", "box")


async def test_frames_that_are_not_part_of_the_answer_do_not_disturb_the_check(
    kind: LinkKind, clock: MockClock | None
) -> None:
    async with open_switch() as switch, connected(switch, "m0", kind) as master:
        master.notify(ECHO)
        req = await master.skip_to(FrameType.REQ)
        chunk = await master.skip_to(FrameType.CHUNK)
        stranger, answer = Answer(4711, None), Answer(req.id, None)
        master.send(stranger.progress(0.5), answer.progress(0.1), answer.start())
        master.send(Answer(req.id, None, "identity-verify").grant(1))
        # A host repeats its notice every 2 s: the last one counts.
        master.notify(UPPER)
        master.send(answer.chunk(chunk.fields[6]), answer.stream_end(), answer.end())
        await switch.wait_for(UPPER)
        assert caps(switch) == [IDENTITY, UPPER]


async def wrong_nonce(master: Master, answer: Answer, payload: bytes) -> None:
    master.send(answer.start(), answer.chunk(encode_value(b"?" * 32)), answer.stream_end(), answer.end())


async def text_for_bytes(master: Master, answer: Answer, payload: bytes) -> None:
    master.send(answer.start(), answer.chunk(encode_value("?" * 32)), answer.stream_end(), answer.end())


async def bad_checksum(master: Master, answer: Answer, payload: bytes) -> None:
    master.send(answer.start(), answer.chunk(payload, checksum=1), answer.stream_end(), answer.end())


async def no_stream(master: Master, answer: Answer, payload: bytes) -> None:
    master.send(answer.end())


async def an_error(master: Master, answer: Answer, payload: bytes) -> None:
    master.send(answer.err("NO_HANDLER", "environment", "what identity?"))


async def silence(master: Master, answer: Answer, payload: bytes) -> None:
    master.send(answer.start())


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [
        (wrong_nonce, "not the nonce"),
        (text_for_bytes, "must come back as bytes"),
        (bad_checksum, "wrong checksum"),
        (no_stream, "the identity answer has no stream"),
        (an_error, "ERR 'NO_HANDLER': 'what identity?'"),
        (silence, "no answer to the identity check in 0.2 s"),
    ],
)
@pytest.mark.parametrize("deferred", [False, True], ids=["direct", "deferred"])
async def test_a_failed_identity_check_costs_the_link(
    kind: LinkKind, clock: MockClock | None, misdeed: Callable[..., object], reason: str, deferred: bool
) -> None:
    """S5."""
    if deferred and misdeed in (wrong_nonce, text_for_bytes):
        reason = "longer than the nonce"
    async with (
        open_switch(QUICK) as switch,
        ready(switch, "good", kind, UPPER),
        connected(switch, "bad", kind) as master,
    ):
        if deferred:
            master.notify()
        master.notify(ECHO)
        req = await master.skip_to(FrameType.REQ)
        chunk = await master.skip_to(FrameType.CHUNK)
        await misdeed(master, Answer(req.id, req.xid), chunk.fields[6])  # type: ignore[misc]
        await master.wait_closed()
        assert states(switch) == {"good": "ready", "bad": "dead"}
        assert reason in switch.snapshot()["hosts"]["bad"]["reason"]
        assert caps(switch) == [IDENTITY, UPPER]
        with pytest.raises(RequestFailedError, match="NO_HANDLER"):
            switch.open_request(ECHO, Caller())


async def test_a_host_without_caps_is_checked_when_it_offers_one(kind: LinkKind, clock: MockClock | None) -> None:
    """S3, S5."""
    async with open_switch() as switch, connected(switch, "m0", kind) as master:
        await master.next(FrameType.POLICY)
        master.notify()
        master.notify()
        master.notify(ECHO)
        check = [await master.next() for _ in range(5)]
        assert [view.type.name for view in check] == ["REQ", "STREAM_START", "CHUNK", "STREAM_END", "END"]
        assert {(view.seq, view.xid) for view in check} == {(0, 1)}
        assert check[1].stream_id == "identity-verify-runtime"
        assert check[2].fields[6] == bytes.fromhex("66626966616369")
        answer = Answer(check[0].id, 1)
        master.send(answer.start(), answer.chunk(check[2].fields[6]), answer.stream_end(), answer.end())
        await switch.wait_for(ECHO)
        # Once is enough: the link is the same.
        master.notify()
        master.notify(UPPER)
        await switch.wait_for(UPPER)
        assert master.untaken() == []
        assert caps(switch) == [IDENTITY, UPPER]
        assert switch.snapshot()["drops"]["total"] == 0


@pytest.mark.parametrize(
    "first",
    [
        hello_frame(DEFAULT_LIMITS),
        policy_frame(NetworkPolicy.FULL),
        Frame(FrameType.HEARTBEAT, 1),
        Frame(FrameType.RELAY_STATE, 0, payload=b"x"),
        Frame(FrameType.REQ, 1, cap=ECHO),
        err_frame(1, Failure("NO_HANDLER", RequestFailedError.attribution, "x")),
    ],
    ids=lambda frame: frame.frame_type.name,
)
async def test_the_first_frame_is_relay_notify(kind: LinkKind, clock: MockClock | None, first: Frame) -> None:
    """S1."""
    async with open_switch() as switch, connected(switch, "m0", kind) as master:
        master.send(first)
        await master.wait_closed()
        assert f"must be RELAY_NOTIFY, not {first.frame_type.name}" in switch.snapshot()["hosts"]["m0"]["reason"]


@pytest.mark.parametrize(
    "frame",
    [
        hello_frame(DEFAULT_LIMITS),
        policy_frame(NetworkPolicy.FULL),
        Frame(FrameType.RELAY_STATE, 0, payload=b"x"),
        Frame(FrameType.RELAY_NOTIFY, 0, meta={"max_frame": 1}),
        Frame(FrameType.RELAY_NOTIFY, 0, meta={"manifest": b"{", "max_frame": 10, "max_chunk": 1}),
        Frame(
            FrameType.RELAY_NOTIFY,
            0,
            meta={"manifest": b'{"installed_cartridges": [{"channel": "release"}]}', "max_frame": 10, "max_chunk": 1},
        ),
        Frame(
            FrameType.RELAY_NOTIFY,
            0,
            meta={
                "manifest": b'{"installed_cartridges":'
                b'[{"registry_url":null,"channel":"release","runtime_stats":{},"cap_groups":7}]}',
                "max_frame": 10,
                "max_chunk": 1,
            },
        ),
        Frame(
            FrameType.RELAY_NOTIFY,
            0,
            meta={
                "manifest": b'{"installed_cartridges": [{"channel":"release","runtime_stats":{}}]}',
                "max_frame": 10,
                "max_chunk": 1,
            },
        ),
    ],
    ids=["HELLO", "POLICY", "RELAY_STATE", "no manifest", "no JSON", "no stats", "no list", "no registry_url"],
)
async def test_what_a_host_must_not_send_costs_its_link_alone(
    kind: LinkKind, clock: MockClock | None, frame: Frame
) -> None:
    """S9."""
    async with (
        open_switch() as switch,
        ready(switch, "good", kind, UPPER) as good,
        ready(switch, "bad", kind, ECHO) as bad,
    ):
        victim, neighbour = Caller(), Caller()
        switch.open_request(ECHO, victim)
        switch.open_request(UPPER, neighbour)
        bad.send(frame)
        await bad.wait_closed()
        assert (await victim.terminal()).meta["code"] == "MASTER_DIED"
        answer = Answer((await good.next(FrameType.REQ)).id, 2)
        good.send(answer.end())
        assert (await neighbour.terminal()).type is FrameType.END


async def test_a_heartbeat_of_a_host_is_counted_and_ignored(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        master.send(Frame(FrameType.HEARTBEAT, 1))
        master.notify(UPPER)
        await switch.wait_for(UPPER)
        assert switch.snapshot()["drops"]["by_reason_frame_type"] == {"no_route": {"heartbeat": 1}}


async def test_a_notice_replaces_the_caps_whole_while_requests_run(kind: LinkKind, clock: MockClock | None) -> None:
    """S10."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        switch.open_request(ECHO, caller)
        answer = Answer((await master.next(FrameType.REQ)).id, 1)
        master.notify(ECHO)
        master.notify(UPPER)
        await switch.wait_for(UPPER)
        assert caps(switch) == [IDENTITY, UPPER]
        with pytest.raises(RequestFailedError, match="no attached host serves cap:echo"):
            switch.open_request(ECHO, Caller())
        master.send(answer.start(), answer.stream_end(), answer.end())
        assert (await caller.terminal()).type is FrameType.END


async def test_repeating_a_notice_does_not_change_who_comes_first(kind: LinkKind, clock: MockClock | None) -> None:
    """S10, S11."""
    async with (
        open_switch() as switch,
        ready(switch, "first", kind, ECHO) as first,
        ready(switch, "second", kind, ECHO),
    ):
        first.notify(ECHO)
        first.notify(ECHO, UPPER)
        await switch.wait_for(UPPER)
        assert switch.open_request(ECHO, Caller()).host == "first"


async def test_a_record_with_an_attachment_error_offers_nothing(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        broken = {**install(UPPER, name="broken"), "attachment_error": {"kind": "handshake_failed", "message": "m"}}
        master.send(notify_frame(DEFAULT_LIMITS, [broken]))
        await until(lambda: not caps(switch))
        assert switch.snapshot()["hosts"]["m0"]["installed_cartridges"] == [broken]


async def test_the_slot_of_a_dead_host_is_taken_by_its_name(kind: LinkKind, clock: MockClock | None) -> None:
    """S6."""
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as old:
        old.link.close()
        await until(lambda: states(switch) == {"m0": "dead"})
        async with ready(switch, "m0", kind, UPPER) as new:
            assert states(switch) == {"m0": "ready"}
            assert caps(switch) == [IDENTITY, UPPER]
            # What the old link still says reaches nobody.
            old.notify(ECHO)
            switch.open_request(UPPER, Caller())
            await new.next(FrameType.REQ)
            assert caps(switch) == [IDENTITY, UPPER]


async def test_a_host_that_goes_away_during_its_check_leaves_nothing(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch(QUICK) as switch:
        async with connected(switch, "m0", kind) as master:
            master.notify(ECHO)
            await master.skip_to(FrameType.END)
        await until(lambda: states(switch) == {"m0": "dead"})
        assert len(switch.alarms) == 0


async def test_waiting_for_a_cap_that_nobody_offers_ends_with_the_scope(autojump_clock: MockClock) -> None:
    async with open_switch() as switch:
        with trio.move_on_after(100) as scope:
            await switch.wait_for(ECHO)
        assert scope.cancelled_caught


async def test_leaving_the_switch_settles_requests_and_closes_links(kind: LinkKind, clock: MockClock | None) -> None:
    caller = Caller()
    async with trio.open_nursery() as nursery:
        async with open_switch() as switch:
            master = await nursery.start(_hold_open, switch, kind)
            switch.open_request(ECHO, caller)
            await master.next(FrameType.REQ)
        assert (await caller.terminal()).meta["code"] == "ABORTED"
        await master.wait_closed()
        with pytest.raises(RequestFailedError, match="NO_HANDLER"):
            switch.open_request(ECHO, Caller())
        nursery.cancel_scope.cancel()


async def _hold_open(
    switch: Switch, kind: LinkKind, task_status: trio.TaskStatus[Master] = trio.TASK_STATUS_IGNORED
) -> None:
    async with ready(switch, "m0", kind, ECHO) as master:
        task_status.started(master)
        await trio.sleep_forever()


async def test_a_failing_block_leaves_the_switch_with_its_own_error(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        async with open_switch():
            await wait_all_tasks_blocked()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()
