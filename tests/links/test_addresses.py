"""Addresses: parsed once, shown as they were written, and refused with the remedy."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest
import trio

from capdag.transport import Address, AddressError, Credentials, Scheme, SocketError
from capdag.transport.addresses import parse_address
from capdag.transport.dialling import LinkTimes, dial
from capdag.transport.listening import Doorway
from tests.links.test_kinds import End


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("unix:/run/capdag/a.sock", Address(Scheme.UNIX, "", 0, "/run/capdag/a.sock")),
        ("unix:a b:c", Address(Scheme.UNIX, "", 0, "a b:c")),
        ("tcp:127.0.0.1:7070", Address(Scheme.TCP, "127.0.0.1", 7070, "")),
        ("tcp:[::1]:0", Address(Scheme.TCP, "::1", 0, "")),
        ("tls:models.example:443", Address(Scheme.TLS, "models.example", 443, "")),
        ("ws://models.example:80/a/b", Address(Scheme.WS, "models.example", 80, "/a/b")),
        ("wss://[2001:db8::1]:443/", Address(Scheme.WSS, "2001:db8::1", 443, "/")),
    ],
)
def test_what_an_address_is(text: str, parsed: Address) -> None:
    """K1."""
    assert parse_address(text) == parsed
    assert str(parsed) == text


def test_spellings_that_mean_the_same() -> None:
    assert str(parse_address("TCP:localhost:1")) == "tcp:localhost:1"
    assert str(parse_address("ws://localhost:1")) == "ws://localhost:1/"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no address: write one of unix:PATH, tcp:HOST:PORT, tls:HOST:PORT, ws://HOST:PORT/PATH, wss://HOST"),
        ("/run/a.sock", "'/run/a.sock' is no address: write one of unix:PATH"),
        ("tpc:a:1", "did you mean tcp:? write one of"),
        ("http://a:1/", "'http://a:1/' is no address: write one of"),
        ("unix:", "nothing follows the colon; write unix:PATH"),
        ("unix:" + "p" * 108, "has 108 bytes, and that of a unix socket may have 107: choose a folder with a shorter"),
        ("unix:a\0b", "holds a zero byte"),
        ("tcp:localhost", "the port is missing; write tcp:HOST:PORT"),
        ("tcp:[::1]", "the port is missing"),
        ("tcp::7070", "the host is missing (0.0.0.0 and [::] stand for every address of this machine)"),
        ("tcp:::1:7070", "an IPv6 address stands in brackets, as [::1]:7070"),
        ("tcp:a:b", "the port 'b' is not a number from 0 to 65535"),
        ("tcp:a:65536", "the port '65536' is not a number from 0 to 65535"),
        ("tls:a:1/x", "it has no path; write tls:HOST:PORT"),
        ("ws:a:1", "two slashes are missing; write ws://HOST:PORT/PATH"),
        ("wss://a/x", "the port is missing; write wss://HOST:PORT/PATH"),
        ("ws://a:1/x?token=y", "the path may hold neither ?, # nor blanks"),
        ("ws://me:secret@a:1/", "names and passwords have no place in it (give a token with --token-file)"),
    ],
)
def test_what_is_no_address(text: str, message: str) -> None:
    """K1."""
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("unix:/a", True),
        ("tcp:127.9.9.9:1", True),
        ("ws://[::1]:1/", True),
        ("tcp:localhost:1", True),
        ("tcp:0.0.0.0:1", False),
        ("tls:10.0.0.1:1", False),
        ("tcp:models.example:1", False),
    ],
)
def test_which_reach_other_machines(text: str, local: bool) -> None:
    assert parse_address(text).is_local is local


async def _listen(text: str) -> str:
    doorway = Doorway(parse_address(text), Credentials(insecure=True), LinkTimes())
    with pytest.raises(SocketError) as caught:
        await doorway.serve(End().use)
    return str(caught.value)


async def test_an_address_that_cannot_be_listened_at_is_named_with_the_remedy(tmp_path: Path) -> None:
    """K2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = await _listen(f"tcp:127.0.0.1:{port}")
        assert text.startswith(f"cannot listen at tcp:127.0.0.1:{port}: port {port} is in use: choose another, or stop")
    assert "give an address of this machine" in await _listen("tcp:192.0.2.1:7070")
    assert "No such file or directory" in await _listen(f"unix:{tmp_path}/none/a.sock")
    (tmp_path / "file").write_text("precious")
    assert "it is in use: another process listens there, or a file has that name" in await _listen(
        f"unix:{tmp_path}/file"
    )
    assert (tmp_path / "file").read_text() == "precious"
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    assert "others may write to its folder" in await _listen(f"unix:{open_folder}/a.sock")
    open_folder.chmod(0o1777)
    async with trio.open_nursery() as nursery:
        doorway = Doorway(parse_address(f"unix:{open_folder}/a.sock"), Credentials(), LinkTimes())
        await nursery.start(doorway.serve, End().use)
        assert (open_folder / "a.sock").stat().st_mode & 0o777 == 0o600
        nursery.cancel_scope.cancel()


async def test_an_address_that_cannot_be_reached_is_named_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for text, why in [
        (f"tcp:127.0.0.1:{port}", f"cannot reach tcp:127.0.0.1:{port}: Connection refused; is the other side running?"),
        (
            f"unix:{tmp_path}/a",
            f"cannot connect to {tmp_path}/a: No such file or directory; is the other side running?",
        ),
        ("tcp:no-such-host.invalid:1", "cannot reach tcp:no-such-host.invalid:1: "),
    ]:
        with pytest.raises(SocketError) as caught:
            await dial(parse_address(text), Credentials(insecure=True), LinkTimes(), End().use)
        assert why in str(caught.value)


async def test_running_out_of_descriptors_is_lived_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """K11."""
    failures = [OSError(errno.EMFILE, "Too many open files")]
    accept = trio.SocketListener.accept

    async def failing(self: trio.SocketListener) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", failing)
    doorway = Doorway(parse_address("tcp:127.0.0.1:0"), Credentials(), LinkTimes())
    end, other = End(), End()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(doorway.serve, end.use)
        nursery.start_soon(dial, address, Credentials(), LinkTimes(), other.use)
        await end.connected()
        assert doorway.strangers.snapshot() == {"descriptors": 1}
        nursery.cancel_scope.cancel()
