"""A link that ends is made again: with growing, jittered pauses, told of once, and cancelled at any time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from capdag.transport import ByteLink, Credentials, UnixListener, parse_address
from capdag.transport.dialling import LinkTimes
from capdag.transport.redialling import PATIENCE, Dialler, DialState, Pauses
from tests.links.kinds import certificates, doorway, way
from tests.links.test_kinds import End

PAUSES = Pauses(first=0.2, longest=5.0, stable=3.0)


def dialler(path: Path, seed: int = 1) -> Dialler:
    return Dialler(parse_address(f"unix:{path}"), Credentials(), LinkTimes(), PAUSES, Random(seed))


class Tries:
    """What is done with each link: it is closed after `lasts` seconds. Remembers when it came."""

    def __init__(self, lasts: float = 0.0) -> None:
        self.lasts = lasts
        self.times: list[float] = []

    async def use(self, link: ByteLink) -> None:
        self.times.append(trio.current_time())
        await trio.sleep(self.lasts)
        link.close()

    @property
    def pauses(self) -> list[float]:
        return [later - earlier - self.lasts for earlier, later in pairwise(self.times)]


async def test_one_that_is_missing_is_told_of_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """K19."""
    path, tries = tmp_path / "none.sock", Tries()
    keeper = dialler(path)
    with trio.move_on_after(PATIENCE - 1):
        await keeper.keep(tries.use)
    assert caplog.messages == []
    with trio.move_on_after(10 * PATIENCE):
        await keeper.keep(tries.use)
    (message,) = caplog.messages
    assert message == f"cannot connect to {path}: No such file or directory; is the other side running? (trying on)"
    assert tries.times == []
    shown = keeper.snapshot()
    assert (shown["address"], shown["links"]) == (f"unix:{path}", 0)
    assert shown["failed_in_a_row"] > 10
    assert "No such file" in shown["trouble"]


async def test_one_that_refuses_is_told_of_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """K19."""

    async def run(link: ByteLink) -> None:
        await link.run(End())

    with UnixListener(tmp_path / "a.sock") as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dialler(listener.path).keep, run)
            for _ in range(3):
                (await listener.accept()).close()
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    (message,) = caplog.messages
    assert "sent no frame (the other side closed the link): it may serve another already" in message


async def test_what_each_refusal_has_of_its_own_is_not_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """K19: a server of another protocol greets each time with other bytes."""

    async def run(link: ByteLink) -> None:
        await link.run(End())

    with UnixListener(tmp_path / "a.sock") as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dialler(listener.path).keep, run)
            for greeting in (b"SSH-2.0-OpenSSH_9.6 ", b"220 mail.example ESMTP ", b"RFB 003.008 or so\n"):
                with await listener.accept() as sock:
                    sock.send(greeting)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    (message,) = caplog.messages
    assert "sent no frame" in message


async def test_pauses_grow_to_a_limit_and_differ_between_two_that_lost_one_peer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """K18."""
    one, other = Tries(), Tries()
    with UnixListener(tmp_path / "a.sock") as listener, trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dialler(listener.path, 1).keep, one.use)
            nursery.start_soon(dialler(listener.path, 2).keep, other.use)
            while True:  # else the backlog fills
                (await listener.accept()).close()
    expected = [min(PAUSES.longest, PAUSES.first * 2**number) for number in range(len(one.pauses))]
    for pause, most in zip(one.pauses, expected, strict=True):
        assert most / 2 <= pause <= most
    assert expected[-1] == PAUSES.longest
    assert all(mine != yours for mine, yours in zip(one.pauses, other.pauses, strict=False))


async def test_a_link_that_lasted_makes_the_next_pause_short_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    """K18."""
    tries = Tries()
    keeper = dialler(tmp_path / "a.sock")
    with UnixListener(tmp_path / "a.sock") as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.keep, tries.use)
            for _ in range(6):
                (await listener.accept()).close()
            tries.lasts = PAUSES.stable
            for _ in range(3):
                (await listener.accept()).close()
            await wait_all_tasks_blocked()
            assert keeper.state is DialState.CONNECTED
            nursery.cancel_scope.cancel()
    assert max(tries.times[-1] - tries.times[-2] - tries.lasts, 0) <= PAUSES.first


async def test_certificates_may_be_renewed_between_two_links(tmp_path: Path) -> None:
    """K4: what is missing for a moment is a failure like another."""
    files = certificates()
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    ends: list[End] = []

    async def run(link: ByteLink) -> None:
        ends.append(End())
        await ends[-1].use(link)

    for path, kept in ((certificate, files.client[0]), (key, files.client[1])):
        path.write_bytes(kept.read_bytes())
    async with doorway(way("tls"), End().use) as (_, address), trio.open_nursery() as nursery:
        dialling = Credentials(tls_cert=certificate, tls_key=key, tls_ca=files.ca)
        keeper = Dialler(address, dialling, LinkTimes(), Pauses(first=0.01, longest=0.01))
        certificate.unlink()
        nursery.start_soon(keeper.keep, run)
        while "cannot read" not in keeper.snapshot()["trouble"]:  # noqa: ASYNC110
            await trio.sleep(0.01)
        certificate.write_bytes(files.client[0].read_bytes())
        with trio.fail_after(10):
            while not ends:  # noqa: ASYNC110
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_cancelling_ends_it_in_every_state_and_leaves_no_descriptor(tmp_path: Path) -> None:
    async def hold(link: ByteLink) -> None:
        await trio.sleep_forever()

    with UnixListener(tmp_path / "a.sock") as listener:
        for state, seconds in ((DialState.CONNECTED, 0.02), (DialState.PAUSING, 0.02)):
            keeper = dialler(listener.path if state is DialState.CONNECTED else tmp_path / "none.sock")
            with trio.move_on_after(seconds) as scope:
                await keeper.keep(hold)
            assert scope.cancelled_caught
            assert keeper.state is state
