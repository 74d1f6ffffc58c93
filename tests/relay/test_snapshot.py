"""The switch's state as plain data."""

from __future__ import annotations

import json

import trio
from trio.testing import MockClock

from capdag.relay import open_switch
from capdag.wire import DEFAULT_LIMITS
from capdag.wire.notify import notify_frame
from tests.relay.masters import ECHO, IDENTITY, UPPER, Caller, LinkKind, body, install, peer_call, ready, until

PEER = b"peer call id 16b"


async def test_live_requests_show_where_they_stand(autojump_clock: MockClock) -> None:
    async with (
        open_switch() as switch,
        ready(switch, "a", "local", UPPER) as a,
        ready(switch, "b", "local", ECHO) as b,
    ):
        request = switch.open_request(UPPER, Caller())
        await trio.sleep(2)
        a.send(*peer_call(PEER, b"\x42hi", parent_rid=request.rid))
        answer = (await b.take_request()).answer
        b.send(answer.start(unbounded=True), *answer.chunks(3), answer.progress(0.5), answer.grant(1))
        a.send(answer.grant(1))
        await trio.sleep(1)
        snapshot = switch.snapshot()
        json.dumps(snapshot)
        parent, child = snapshot["requests"]["active"]
        assert {key: parent[key] for key in ("xid", "rid", "phase", "is_peer", "cap_urn", "children")} == {
            "xid": 1,
            "rid": request.rid.hex(),  # type: ignore[union-attr]
            "phase": "created",
            "is_peer": False,
            "cap_urn": UPPER,
            "children": 1,
        }
        assert (parent["origin_master"], parent["destination_master"]) == (None, "a")
        assert (parent["age_ms"], parent["idle_ms"]) == (3000, 3000)
        assert (child["phase"], child["is_peer"]) == ("streaming", True)
        assert (child["origin_master"], child["destination_master"]) == ("a", "b")
        assert (child["age_ms"], child["idle_ms"], child["children"]) == (1000, 1000, 0)
        streams = {stream["stream_id"]: stream for stream in child["streams"] if stream["stream_id"]}
        assert streams["out-0"] == {
            "stream_id": "out-0",
            "frames_in": 4,
            "frames_out": 1,
            "bytes_in": 6,
            "bytes_out": 0,
            "chunks_in": 3,
            "chunks_out": 0,
            "credit_outstanding": 30,
            "held": 0,
            "unbounded": True,
            "ended": False,
        }
        assert streams["arg-0"] == {
            "stream_id": "arg-0",
            "frames_in": 1,
            "frames_out": 3,
            "bytes_in": 0,
            "bytes_out": 3,
            "chunks_in": 0,
            "chunks_out": 1,
            "credit_outstanding": 32,
            "held": 0,
            "unbounded": False,
            "ended": True,
        }
        loose = [stream for stream in child["streams"] if stream["stream_id"] is None]
        assert [(stream["frames_in"], stream["frames_out"]) for stream in loose] == [(1, 0), (0, 2)]


async def test_ended_requests_show_how_they_ended(autojump_clock: MockClock) -> None:
    async with open_switch() as switch, ready(switch, "m0", "local", ECHO) as master:
        request = switch.open_request(ECHO, Caller())
        request.send(body(request.rid, b"\x42hi"))
        answer = (await master.take_request()).answer
        await trio.sleep(1.5)
        master.send(answer.start(), answer.chunk(b"\x41x"), answer.stream_end(), answer.end())
        snapshot = switch.snapshot()
        assert snapshot["requests"]["recent_terminated"] == [
            {
                "xid": 1,
                "rid": request.rid.hex(),  # type: ignore[union-attr]
                "kind": "end",
                "is_peer": False,
                "cap_urn": ECHO,
                "lifetime_ms": 1500,
                "frames_in": 5,
                "frames_out": 5,
                "bytes_in": 2,
                "bytes_out": 3,
            }
        ]
        assert snapshot["requests"]["total_registered"] == 1
        assert snapshot["drops"] == {"total": 0, "by_reason": {}, "by_reason_frame_type": {}}
        assert (snapshot["routing_gc_runs_total"], snapshot["routing_gc_evicted_total"]) == (0, 0)


async def test_hosts_show_what_they_told(kind: LinkKind, clock: MockClock | None) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        limits = DEFAULT_LIMITS._replace(initial_credit=8)
        record, stats = install(UPPER, name="up"), {"outgoing_rids": 3}
        master.send(notify_frame(limits, [record], stats))
        await switch.wait_for(UPPER)
        host = switch.snapshot()["hosts"]["m0"]
        assert host == {
            "state": "ready",
            "reason": "",
            "limits": limits._asdict(),
            "caps": [IDENTITY, UPPER],
            "pools": {"up": {name: {"size": 0, "active": 0} for name in (IDENTITY, UPPER, "all")}},
            "installed_cartridges": [record],
            "protocol_stats": stats,
            "host_id": None,
        }
        master.link.close()
        await until(lambda: switch.snapshot()["hosts"]["m0"]["state"] == "dead")
        host = switch.snapshot()["hosts"]["m0"]
        assert (host["reason"], host["caps"]) == ("the other side closed the link", [])
