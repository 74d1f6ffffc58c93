"""Requests of callers, over both kinds of link."""

from __future__ import annotations

import trio

from capdag.relay import open_switch
from capdag.wire import Frame, FrameType, fnv1a_64

from tests.relay.masters import ECHO, Caller, LinkKind, ready


async def test_a_request_and_its_answer(kind: LinkKind) -> None:
    async with open_switch() as switch, ready(switch, "m0", kind, ECHO) as master:
        caller = Caller()
        request = switch.open_request(ECHO, caller)
        payload = b"\x45hello"
        request.send(
            [
                Frame(FrameType.STREAM_START, request.rid, stream_id="arg-0", media_urn="media:octets"),
                Frame(FrameType.CHUNK, request.rid, stream_id="arg-0", payload=payload, chunk_index=0, checksum=fnv1a_64(payload)),
                Frame(FrameType.STREAM_END, request.rid, stream_id="arg-0", chunk_count=1),
                Frame(FrameType.END, request.rid, eof=True),
            ]
        )
        received = await master.take_request()
        assert received.payload == payload
        assert [view.seq for view in master.seen if view.id == request.rid] == [0, 1, 2, 3, 4]
        assert {view.xid for view in master.seen if view.id == request.rid} == {request.xid}
        answer = received.answer
        master.send(answer.start(), answer.chunk(payload), answer.stream_end(), answer.end())
        assert (await caller.terminal()).type is FrameType.END
        assert request.ended
        assert switch.snapshot()["requests"]["active"] == []
