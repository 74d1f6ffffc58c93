"""The identity cap: answered by the host, without a process, with credit in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from capdag.wire import IDENTITY_CAP, FrameType, IdentityCheck, identity_request
from tests.host.driver import LINKS, bench, record


@LINKS
async def test_direct_check_is_answered_without_an_xid(link: str) -> None:
    """H11."""
    async with bench(record(), link=link) as it:
        rid, nonce = b"r" * 16, b"n" * 32
        it.relay.send(*identity_request(rid, nonce))
        await it.relay.until(lambda: any(view.type is FrameType.END for view in it.relay.loose))
        check = IdentityCheck(nonce)
        answer = [view for view in it.relay.loose if view.id == rid and view.type is not FrameType.CREDIT]
        assert [check.feed(view) for view in answer] == [False, False, False, True]
        assert [view.seq for view in answer] == [0, 1, 2, 3]
        assert {view.xid for view in answer} == {None}
        assert it.state() == "registered"


async def test_every_stream_comes_back_as_it_went_in(autojump_clock: Any) -> None:
    """H11."""
    async with bench(record()) as it:
        call = it.relay.call(IDENTITY_CAP)
        call.start("a")
        call.chunk(b"1", 0, "a")
        call.start("b")
        call.chunk(b"2", 0, "b")
        call.chunk(b"3", 1, "a")
        call.finish(2, "a")
        await call.ended()
        chunks = [(view.stream_id, view.fields[14], view.fields[6]) for view in call.of(FrameType.CHUNK)]
        assert chunks == [("echo-a", 0, b"A1"), ("echo-b", 0, b"A2"), ("echo-a", 1, b"A3")]


async def test_argument_is_granted_only_when_its_echo_went_out(autojump_clock: Any) -> None:
    """H11."""
    async with bench(record()) as it:
        call = it.relay.call(IDENTITY_CAP)
        call.grants = False
        call.start()
        for index in range(40):
            call.chunk(b"%d" % index, index)
        call.finish(40)
        assert len(call.of(FrameType.CHUNK)) == 32
        granted = [view for view in call.of(FrameType.CREDIT) if view.meta["credit_dir"] == "request"]
        assert sum(view.fields[19] for view in granted) == 32
        assert not call.terminals
        call.grant("echo-arg", 8)
        assert await call.succeeded() == b"".join(b"%d" % index for index in range(40))
        assert [view.seq for view in call.frames if view.type is not FrameType.CREDIT] == list(range(43))


async def test_cancelled_echo_ends_at_once_and_kills_nothing(autojump_clock: Any) -> None:
    """H11."""
    async with bench(record()) as it:
        call = it.relay.call(IDENTITY_CAP)
        call.start()
        call.cancel(force_kill=True)
        await call.failed("CANCELLED")
        assert await it.relay.call(IDENTITY_CAP).body(b"x").succeeded() == b"x"


async def test_aborted_body_ends_the_echo(autojump_clock: Any) -> None:
    """H11."""
    async with bench(record()) as it:
        call = it.relay.call(IDENTITY_CAP)
        call.start()
        call.abort("HANDLER_ERROR", "the source failed")
        assert await call.failed("HANDLER_ERROR") == "the source failed"


async def test_advertisement_is_repeated_after_the_check_of_a_switch(autojump_clock: Any) -> None:
    """H37: a switch may swallow what comes while its check runs."""
    async with bench(record()) as it:
        before = len(it.relay.notices)
        it.relay.send(*identity_request(b"r" * 16, b"n" * 32))
        assert len(it.relay.notices) == before + 1
        assert [view.type for view in it.relay.loose][-1] is FrameType.END


@pytest.mark.parametrize("cap", ["cap:effect=none", "cap:effect=none;in=media:", "cap:in=media:;effect=none"])
async def test_spelling_of_the_identity_does_not_matter(cap: str, autojump_clock: Any) -> None:
    """H11."""
    async with bench(record()) as it:
        assert await it.relay.call(cap).body(b"x").succeeded() == b"x"
        assert it.state() == "registered"
