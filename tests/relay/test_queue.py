"""Requests that wait at the switch: what their callers hear, who goes next, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from capdag.errors import LocalProtocolError, RequestFailedError
from capdag.relay import Request, Switch, SwitchSettings, open_switch
from capdag.wire import DEFAULT_LIMITS, Frame, FrameType, body_end_frame, failure_of
from tests.relay.masters import (
    ECHO,
    UPPER,
    Answer,
    Caller,
    LinkKind,
    Master,
    body,
    bounded,
    peer_call,
    record,
    tell,
    until,
)

SHOUT = 'cap:in="media:enc=utf-8";out="media:enc=utf-8";shout;upper'
PEER = b"peer call id 16b"


def ask(switch: Switch, cap: str = ECHO, **options: Any) -> tuple[Request, Caller]:
    caller = Caller()
    return switch.open_request(cap, caller, **options), caller


def end(master: Master, request: Request) -> None:
    master.send(Answer(request.rid, request.xid).end())


def logs(caller: Caller) -> list[Any]:
    """Return the level, or the position, of each LOG."""
    return [view.meta.get("position", view.meta["level"]) for view in caller.views if view.type is FrameType.LOG]


def seen(master: Master) -> list[object]:
    return [view.id for view in master.untaken() if view.type is FrameType.REQ]


def active(switch: Switch, host: str = "m0") -> int:
    pools = switch.snapshot()["hosts"][host]["pools"]["cart"]
    assert pools[ECHO]["active"] == pools["all"]["active"]
    count = pools["all"]["active"]
    assert isinstance(count, int)
    return count


async def test_a_request_without_room_waits_and_hears_where_it_stands(kind: LinkKind, clock: MockClock | None) -> None:
    """S22, S28."""
    settings = SwitchSettings(position_interval=0.1)
    async with open_switch(settings) as switch, bounded(switch, 1, kind=kind) as master:
        (a, _), (b, b_heard), (c, c_heard) = ask(switch), ask(switch), ask(switch)
        assert (a.waiting, b.waiting, c.waiting) == (False, True, True)
        await c_heard.until(1)
        assert (logs(b_heard), logs(c_heard)) == ([1], [2])
        assert b_heard.views[0].meta["level"] == "queued"
        assert "at position 1 for cap:echo" in b_heard.views[0].meta["message"]
        assert (await master.next(FrameType.REQ)).id == a.rid
        end(master, a)
        assert (await master.next(FrameType.REQ)).id == b.rid
        await c_heard.until(2)
        assert (logs(b_heard), logs(c_heard)) == ([1, "dequeued"], [2, 1])
        assert (b.host, b.limits) == ("m0", DEFAULT_LIMITS)
        end(master, b)
        await master.next(FrameType.REQ)
        end(master, c)
        await c_heard.terminal()
        assert len(switch.alarms) == 0
        assert switch.snapshot()["queue"] == {"waiting": 0, "lines": {}, "total": {"queued": 2, "dequeued": 2}}


async def test_who_left_while_queued_is_never_heard_of(autojump_clock: MockClock) -> None:
    """S27: A runs, B leaves, C starts right after A and the cartridge never sees B."""
    async with open_switch() as switch, bounded(switch, 1) as master:
        (a, _), (b, b_heard), (c, _) = ask(switch), ask(switch), ask(switch)
        b.cancel()
        assert b.ended
        why = failure_of((await b_heard.terminal()).meta)
        assert (why.code, why.attribution.value) == ("CANCELLED", "user")
        assert why.message.endswith("(while queued)")
        end(master, a)
        assert seen(master) == [a.rid, c.rid]
        assert switch.snapshot()["queue"]["total"] == {"queued": 2, "abandoned": 1, "dequeued": 1}
        b.cancel()
        b.send(body(b.rid))
        assert len(b_heard.terminals) == 1


async def test_nothing_is_sent_while_a_request_waits(autojump_clock: MockClock) -> None:
    async with open_switch() as switch, bounded(switch, 1) as master:
        went: list[str] = []
        a, _ = ask(switch, admitted=lambda request: went.append(request.host))
        assert went == ["m0"]
        b, heard = ask(switch, admitted=lambda request: request.send([body_end_frame(request.rid)]))
        with pytest.raises(LocalProtocolError, match="waits in line"):
            b.send(body(b.rid))
        end(master, a)
        assert [view.type.name for view in master.untaken()] == ["REQ", "REQ", "END"]
        assert [view.id for view in master.untaken()][1:] == [b.rid, b.rid]
        end(master, b)
        await heard.terminal()


def _long_chunk(request: Request) -> None:
    payload = b"x" * DEFAULT_LIMITS.max_frame
    request.send([Frame(FrameType.CHUNK, request.rid, stream_id="s", payload=payload, chunk_index=0, checksum=0)])


ENDINGS: dict[str, Callable[[Master, Request], None]] = {
    "END": end,
    "ERR": lambda master, request: master.send(Answer(request.rid, request.xid).err()),
    "cancel": lambda master, request: (request.cancel(), master.send(Answer(request.rid, request.xid).err()))[1],
    "cancel without an answer": lambda _, request: request.cancel(),
    "broken rule": lambda master, request: (
        master.send(*(Answer(request.rid, request.xid, f"s{n}").start() for n in range(65))),
        master.send(Answer(request.rid, request.xid).err()),
    )[1],
    "frame too long": lambda master, request: (
        _long_chunk(request), master.send(Answer(request.rid, request.xid).err())
    )[1],
    "twice": lambda master, request: (end(master, request), end(master, request))[1],
}  # fmt: skip


@pytest.mark.parametrize("how", ENDINGS)
async def test_a_slot_is_given_back_once_on_every_path(autojump_clock: MockClock, how: str) -> None:
    """S22."""
    async with open_switch(SwitchSettings(cancel_deadline=5)) as switch, bounded(switch, 1) as master:
        (a, a_heard), (b, b_heard), (c, c_heard) = ask(switch), ask(switch), ask(switch)
        ENDINGS[how](master, a)
        await a_heard.terminal()
        await until(lambda: not b.waiting)
        assert (active(switch), c.waiting) == (1, True)
        end(master, b)
        end(master, c)
        await b_heard.terminal()
        await c_heard.terminal()
        assert active(switch) == 0
        assert len(switch.alarms) == 0


async def test_slots_of_a_dead_host_and_of_the_same_host_come_back(autojump_clock: MockClock) -> None:
    """S22, S29: what its link held ends; what waits goes to the new link."""
    async with open_switch() as switch:
        async with bounded(switch, 1):
            (_, a_heard), (b, b_heard) = ask(switch), ask(switch)
        assert (await a_heard.terminal()).meta["code"] == "MASTER_DIED"
        await trio.sleep(59)
        assert b.waiting
        async with bounded(switch, 1) as master:
            assert (await master.next(FrameType.REQ)).id == b.rid
            assert active(switch) == 1
            end(master, b)
            await b_heard.terminal()
            assert len(switch.alarms) == 0


async def test_an_outage_ends_what_waits_after_its_grace(autojump_clock: MockClock) -> None:
    """S29: counted from its start, whoever came when."""
    async with open_switch() as switch:
        async with bounded(switch, 1) as master:
            (_, a_heard), (_, b_heard) = ask(switch), ask(switch)
            await trio.sleep(30)
            tell(master)
            start = trio.current_time()
            assert switch.snapshot()["queue"]["lines"][ECHO]["outage"]
            assert ECHO in [capability.text for capability in switch.away()]
        assert (await a_heard.terminal()).meta["code"] == "MASTER_DIED"
        why = failure_of((await b_heard.terminal()).meta)
        assert trio.current_time() - start == pytest.approx(60, abs=0.1)
        assert (why.code, why.attribution.value) == ("NO_HANDLER", "environment")
        assert "for 60 s" in why.message
        assert len(switch.alarms) == 0


async def test_a_new_request_waits_for_a_host_that_is_away(autojump_clock: MockClock) -> None:
    """S29: behind those that wait already, for what is left of the grace; served when the host is back."""
    async with open_switch() as switch:
        async with bounded(switch, 1):
            _, (b, _) = ask(switch), ask(switch)
        await trio.sleep(30)
        c, c_heard = ask(switch)
        assert (b.waiting, c.waiting, logs(c_heard)) == (True, True, [2])
        async with bounded(switch, 1) as master:
            end(master, b)
            assert seen(master) == [b.rid, c.rid]
            assert switch.away() == ()
            end(master, c)
        _, late = ask(switch)
        with pytest.raises(RequestFailedError, match="NO_HANDLER"):
            ask(switch, UPPER)
        start = trio.current_time()
        assert failure_of((await late.terminal()).meta).code == "NO_HANDLER"
        assert trio.current_time() - start == pytest.approx(60, abs=0.1)
        assert switch.away() == ()
        with pytest.raises(RequestFailedError, match="NO_HANDLER"):
            ask(switch)
        assert len(switch.alarms) == 0


@pytest.mark.parametrize("lack", ["unhealthy", "broken", "gone"])
async def test_what_a_living_host_offers_no_more_is_away_if_its_cartridge_is_mute(
    autojump_clock: MockClock, lack: str
) -> None:
    """S29: one that is broken, or is not installed any more, is not waited for."""
    async with open_switch() as switch, bounded(switch, 1) as master:
        mute = {key: value for key, value in record(1).items() if key != "cap_groups"}
        error = {"kind": "handshake_failed", "message": "no", "detected_at_unix_seconds": 0}
        tell(master, record(1, UPPER) | {"id": "other"}, *({
            "unhealthy": [mute], "broken": [mute | {"attachment_error": error}], "gone": []
        }[lack]))  # fmt: skip
        if lack == "unhealthy":
            assert ask(switch)[0].waiting
        else:
            with pytest.raises(RequestFailedError, match="NO_HANDLER"):
                ask(switch)


async def test_nothing_waits_for_a_host_that_was_let_go(autojump_clock: MockClock) -> None:
    """S8, S29: nor at a switch that is closed."""
    async with open_switch() as switch:
        async with bounded(switch, 1):
            switch.detach("m0")
            with pytest.raises(RequestFailedError, match="NO_HANDLER"):
                ask(switch)
        async with bounded(switch, 1):
            switch.close()
            with pytest.raises(RequestFailedError, match="NO_HANDLER"):
                ask(switch)


async def test_a_new_notice_ends_an_outage(autojump_clock: MockClock) -> None:
    """S29: the same cap, or another that may serve."""
    async with open_switch() as switch, bounded(switch, 1, UPPER) as master:
        (a, _), (b, _), (c, heard) = ask(switch, UPPER), ask(switch, UPPER), ask(switch, UPPER)
        tell(master)
        await trio.sleep(50)
        tell(master, record(1, UPPER))
        await trio.sleep(50)
        assert b.waiting  # the former request of this install still runs
        end(master, a)
        assert seen(master) == [a.rid, b.rid]
        tell(master, record(1, SHOUT) | {"version": "2"})
        assert seen(master) == [a.rid, b.rid, c.rid]
        end(master, c)
        await heard.terminal()


async def test_a_cold_cartridge_gets_one_request(autojump_clock: MockClock) -> None:
    """S25: the others follow when it is known to run, or when the first has failed."""
    async with open_switch() as switch, bounded(switch, 3, running=False) as master:
        requests = [ask(switch) for _ in range(6)]
        rids = [request.rid for request, _ in requests]
        assert seen(master) == rids[:1]
        master.send(Answer(rids[0], requests[0][0].xid).err("SPAWN_FAILED", "environment"))
        assert seen(master) == rids[:2]
        tell(master, record(3))
        assert seen(master) == rids[:4]
        tell(master, record(5))
        assert seen(master) == rids


async def test_a_waiter_goes_to_whichever_host_has_room_first(autojump_clock: MockClock) -> None:
    """S24."""
    async with (
        open_switch() as switch,
        bounded(switch, 1, name="first") as first,
        bounded(switch, 1, name="second") as second,
    ):
        (a, _), (b, _), (c, _), (d, _) = ask(switch), ask(switch), ask(switch), ask(switch, preferred="first")
        assert (a.host, b.host, c.waiting) == ("first", "second", True)
        end(second, b)
        assert c.host == "second"
        end(second, c)
        assert d.host == "second"
        end(second, d)
        end(first, a)
        hosts = [ask(switch, preferred=name)[0].host for name in ("second", "cart")]
        assert hosts == ["second", "first"]


async def test_a_hint_may_name_a_host_or_an_install_whatever_its_rank(autojump_clock: MockClock) -> None:
    """S12."""
    async with (
        open_switch() as switch,
        bounded(switch, 0, UPPER, name="plain"),
        bounded(switch, 0, SHOUT, name="special"),
    ):
        assert ask(switch, UPPER)[0].host == "plain"
        assert ask(switch, UPPER, preferred="special")[0].host == "special"
        assert ask(switch, UPPER, preferred=SHOUT)[0].host == "special"
        assert ask(switch, UPPER, preferred="nobody")[0].host == "plain"
        with pytest.raises(RequestFailedError, match="NO_HANDLER"):
            ask(switch, SHOUT.replace("shout", "sing"), preferred="special")


async def test_a_full_line_refuses(autojump_clock: MockClock) -> None:
    """S27."""
    async with open_switch(SwitchSettings(max_queued=2)) as switch, bounded(switch, 1):
        requests = [ask(switch, caller="a") for _ in range(3)]
        with pytest.raises(RequestFailedError, match="wait for cap:echo") as caught:
            ask(switch, caller="a")
        assert (caught.value.code, caught.value.attribution.value) == ("QUEUE_FULL", "resource")
        assert caught.value.detail == {"param": "max_queued", "limit": 2, "seen": 2}
        other, _ = ask(switch, caller="b")
        assert other.waiting
        why = failure_of((await requests[2][1].terminal()).meta)
        assert (why.code, why.detail) == ("QUEUE_FULL", {"param": "max_queued", "limit": 2, "seen": 2})
        assert requests[1][0].waiting


async def test_callers_take_turns_at_the_switch(autojump_clock: MockClock) -> None:
    """S26."""
    async with open_switch() as switch, bounded(switch, 1) as master:
        asked = [ask(switch, caller=name)[0] for name in "aaab"]
        for position in (0, 3, 1, 2):
            assert seen(master)[-1] == asked[position].rid
            end(master, asked[position])


async def test_a_request_waits_no_longer_than_its_deadline(autojump_clock: MockClock) -> None:
    """S27."""
    async with open_switch(SwitchSettings(queue_timeout=20)) as switch, bounded(switch, 1) as master:
        (a, _), (_, heard) = ask(switch), ask(switch)
        start = trio.current_time()
        why = failure_of((await heard.terminal()).meta)
        assert trio.current_time() - start == pytest.approx(20)
        assert (why.code, why.attribution.value) == ("DEADLINE_EXCEEDED", "resource")
        assert why.detail == {"param": "queue_timeout", "limit": 20, "retryable": True}
        assert seen(master) == [a.rid]
        assert len(switch.alarms) == 0


async def test_a_cartridges_own_calls_take_no_slot(autojump_clock: MockClock) -> None:
    """S30: whoever makes one holds a slot that another may be waiting for."""
    async with open_switch() as switch, bounded(switch, 1) as master:
        (a, _), (b, _) = ask(switch), ask(switch)
        master.send(*peer_call(PEER, parent_rid=a.rid))
        assert seen(master) == [a.rid, PEER]
        assert (active(switch), b.waiting) == (1, True)
        master.send(Answer(PEER, 3).end())
        assert (active(switch), b.waiting) == (1, True)


async def test_the_identity_check_takes_no_slot(autojump_clock: MockClock) -> None:
    """S20."""
    async with open_switch() as switch, bounded(switch, 1, running=False):
        assert not any(ask(switch, "cap:effect=none")[0].waiting for _ in range(3))


async def test_what_cannot_go_when_its_turn_comes_ends(autojump_clock: MockClock) -> None:
    """S22: the next one gets the slot."""
    async with open_switch(SwitchSettings(table_limit=2)) as switch, bounded(switch, 1) as master:
        (a, _), (_, b_heard), (_, c_heard) = ask(switch), ask(switch), ask(switch)
        master.send(*peer_call(PEER))
        master.send(Answer(a.rid, a.xid).end(), *peer_call(b"another call 16b"))
        assert (await b_heard.terminal()).meta["code"] == "TABLE_FULL"
        assert (await c_heard.terminal()).meta["code"] == "TABLE_FULL"
        assert active(switch) == 0


async def test_leaving_the_switch_ends_what_waits(autojump_clock: MockClock) -> None:
    async with open_switch() as switch, bounded(switch, 1) as master:
        (a, _), (_, heard) = ask(switch), ask(switch)
        switch.close()
        assert (await heard.terminal()).meta["code"] == "ABORTED"
        assert seen(master) == [a.rid]
        assert switch.snapshot()["queue"]["total"] == {"queued": 1, "aborted": 1}


async def test_the_snapshot_shows_the_lines(autojump_clock: MockClock) -> None:
    """S31: positions are stable and drop by one."""
    async with open_switch() as switch, bounded(switch, 1) as master:
        asked = []
        for _ in range(5):
            asked.append(ask(switch)[0])
            await trio.sleep(1)
        line = switch.snapshot()["queue"]["lines"][ECHO]
        assert (line["waiting"], line["longest_wait_ms"], line["hosts"], line["outage"]) == (4, 4000, ["m0"], False)
        assert [shown["xid"] for shown in line["requests"]] == [request.xid for request in asked[1:]]
        assert [(shown["position"], shown["wait_ms"]) for shown in line["requests"]] == [
            (1, 4000),
            (2, 3000),
            (3, 2000),
            (4, 1000),
        ]
        assert switch.health() == ({"ready": 1}, 1, 4)
        assert switch.health().is_ready
        end(master, asked[0])
        line = switch.snapshot()["queue"]["lines"][ECHO]
        assert [(shown["xid"], shown["position"]) for shown in line["requests"]] == [
            (request.xid, position) for position, request in enumerate(asked[2:], 1)
        ]


async def test_a_notice_with_bad_pools_costs_the_link(autojump_clock: MockClock) -> None:
    async with open_switch() as switch, bounded(switch, 1) as master:
        bad = record(1)
        bad["runtime_stats"]["pools"]["all"] = {"declared": -1}
        tell(master, bad)
        await master.wait_closed()
        reason = switch.snapshot()["hosts"]["m0"]["reason"]
        assert reason == "installed cartridge 'cart': pool 'all' needs declared as an integer of at least 0, not -1"
