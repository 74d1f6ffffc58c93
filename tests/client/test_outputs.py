"""The streams of an answer are outputs of the cap that serves: what the manifest denies ends a call."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from capdag.client import Client
from capdag.relay import open_switch
from capdag.wire import DEFAULT_LIMITS
from capdag.wire.notify import notify_frame
from tests.client.test_calls import HELLO, begin, failure_of_call
from tests.relay.masters import ECHO, Answer, LinkKind, connected, install, until

_OUTPUTS = [{"media_urn": "media:octets"}, {"media_urn": "media:log", "optional": True}]


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        ([{}, {}], "stream 'out-1' is the second of the main output"),
        ([{"media_urn": "media:image"}], "has media 'media:image' where media:octets was due"),
        ([{"media_urn": 'nonsense "'}], "stream 'out-0': media_urn is no media URN"),
        ([{"is_sequence": True}], "has is_sequence True, which the manifest denies"),
        ([{"output": "media:other"}], "is output 'media:other', which the manifest does not declare"),
        ([{"output": "media:log"}], "the answer ended without the main output"),
        ([], "the answer ended without the main output"),
    ],
)
async def test_streams_that_the_manifest_does_not_declare_end_a_call(
    kind: LinkKind, clock: MockClock | None, starts: list[dict[str, Any]], why: str
) -> None:
    async with open_switch() as switch, connected(switch, "m0", kind) as master:
        master.send(notify_frame(DEFAULT_LIMITS, [install(ECHO, outputs=_OUTPUTS)]))
        await master.answer_identity()
        await until(lambda: bool(switch.capabilities()))
        async with Client(switch).call(ECHO, HELLO) as call:
            answer = await begin(master)
            for number, fields in enumerate(starts):
                stream = Answer(answer.rid, answer.xid, f"out-{number}")
                master.send(stream.start(**fields), stream.stream_end())
            master.send(answer.end())
            failure = await failure_of_call(call)
        assert failure.code == "PROTOCOL_VIOLATION"
        assert why in failure.message
