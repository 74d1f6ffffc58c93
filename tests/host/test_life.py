"""A cartridge's life in the host: started at the first request, routed to, gone at the end."""

from __future__ import annotations

import pytest

from tests.host.driver import Bench, bench, record
from tests.misbehave import CAP

LINKS = pytest.mark.parametrize("link", ["local", "socket"])


@LINKS
async def test_first_request_starts_the_process(link: str) -> None:
    async with bench(record(), link=link) as it:
        assert it.state() == "registered"
        call = it.relay.call(CAP).body(b"hello", b" world")
        assert await call.succeeded() == b"hello world"
        assert it.state() == "running"
        assert await it.relay.call(CAP).body(b"again").succeeded() == b"again"
        assert it.cartridge()["restarts"] == 0
