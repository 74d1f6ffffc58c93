"""Who is let in: the right token, a certificate of our CA. A stranger gets nothing, and costs a bounded amount."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from capdag.errors import ConfigError
from capdag.transport import Address, ByteLink, Credentials, SocketError, Token, parse_address, read_token
from capdag.transport import listening as listening_module
from capdag.transport.dialling import LinkTimes, dial
from capdag.transport.strangers import LOG_INTERVAL, Strangers, Wrong
from capdag.transport.tls import in_words
from capdag.transport.tokens import PREAMBLE_MARK, PREAMBLE_SIZE
from tests.links.kinds import QUICK, TOKEN, certificates, credentials, doorway, way
from tests.links.test_kinds import PATIENCE, End, chunk

SHORT = LinkTimes(handshake=0.15, silence=10.0)

WRONG = Token("open-sesame-open-says-me")


async def nothing_comes(link: ByteLink) -> None:
    raise AssertionError("a stranger was let in")


async def refused(kind: str, dialling: Credentials, listening: Credentials | None = None) -> tuple[str, dict[str, int]]:
    """Dial with these credentials, which do not suffice; return what the dialling side hears, and the counts."""
    how = way(kind)
    if listening is not None:
        how = how._replace(listening=listening)
    async with doorway(how, nothing_comes) as (door, address):
        with trio.fail_after(PATIENCE), pytest.raises(SocketError) as caught:
            await dial(address, dialling, QUICK, End().use)
        await until(lambda: door.strangers.snapshot())
        return str(caught.value), door.strangers.snapshot()


async def until(ready: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE):
        while not ready():  # noqa: ASYNC110
            await trio.sleep(0.005)


@pytest.mark.parametrize("kind", ["tcp", "ws"])
@pytest.mark.parametrize("token", [WRONG, None])
async def test_without_the_right_token_nobody_comes_in(kind: str, token: Token | None) -> None:
    """K5, K6."""
    if kind == "tcp" and token is None:
        dialling, heard, wrong = Credentials(), "may serve another already, want a token", {"token": 1}
        # It sends frames where the token should be.
        async with doorway(way(kind), nothing_comes) as (door, address):
            end = End()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_dial_and_fail, address, dialling, end, heard)
                (await end.connected()).send([chunk(0, 400)])
            assert door.strangers.snapshot() == wrong
        return
    text, counts = await refused(kind, Credentials(token=token))
    assert counts == {"token": 1}
    assert ("sent no frame" if kind == "tcp" else "the token is not the one that it knows") in text
    assert "open-s" not in text


async def _dial_and_fail(address: Address, dialling: Credentials, end: End, heard: str) -> None:
    with pytest.raises(SocketError, match=heard):
        await dial(address, dialling, QUICK, end.use)


async def test_another_path_is_refused() -> None:
    """K6."""
    async with doorway(way("ws"), nothing_comes) as (door, address):
        with pytest.raises(SocketError, match="refused the link: it has another path"):
            await dial(address._replace(path="/other"), Credentials(token=TOKEN), QUICK, End().use)
        await until(lambda: door.strangers.snapshot() == {"path": 1})


@pytest.mark.parametrize("kind", ["tls", "wss"])
@pytest.mark.parametrize("who", ["nobody", "stranger"])
async def test_without_a_certificate_of_our_ca_nobody_comes_in(kind: str, who: str) -> None:
    """K4."""
    if who == "nobody":
        dialling = Credentials(tls_ca=certificates().ca, token=TOKEN)
    else:
        dialling = credentials("stranger", token=True)
    text, counts = await refused(kind, dialling)
    assert counts == {"certificate": 1}
    assert "this side's certificate is not accepted: " in text
    assert ("wants one (--tls-cert)" if who == "nobody" else "is not signed by the CA") in text


@pytest.mark.parametrize("kind", ["tls", "wss"])
async def test_a_listening_side_whose_certificate_is_not_known_gets_no_frame(kind: str) -> None:
    """K4."""
    text, counts = await refused(kind, credentials("client", token=True), credentials("stranger", token=True))
    assert counts == {"certificate": 1}
    assert "its certificate is not accepted" in text
    assert "is --tls-ca the one that signed it?" in text


@pytest.mark.parametrize(
    ("verify_code", "remedy"),
    [
        (10, "has expired: renew it"),
        (62, "dial a name that is in it"),
        (64, "dial a name that is in it"),
        (20, "--tls-ca"),
    ],
)
def test_the_remedy_for_a_certificate_is_the_one_for_its_fault(verify_code: int, remedy: str) -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)")
    error.verify_code, error.verify_message = verify_code, "as OpenSSL has it"
    assert remedy in in_words(error)
    assert "_ssl.c" not in in_words(error)


async def test_a_host_dialled_by_a_name_that_its_certificate_has_not() -> None:
    """K4."""
    async with doorway(way("tls")._replace(address="tls:0.0.0.0:0"), nothing_comes) as (door, address):
        with pytest.raises(SocketError, match=r"is for another name .*: dial a name that is in it"):
            await dial(address._replace(host="127.0.0.2"), credentials("client"), QUICK, End().use)
        await until(lambda: door.strangers.snapshot())


TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 600

UPGRADE = b"GET /capdag HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
"""With a host that is no text the library raises what it does not name."""

GARBAGE = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", UPGRADE % b"\xdd\xff", UPGRADE % b"x", TLS_HELLO, b"\0" * 900]


@pytest.mark.parametrize("kind", ["tcp", "tls", "ws", "wss"])
async def test_what_speaks_otherwise_is_turned_away_without_a_traceback(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """K10."""
    async with doorway(way(kind), nothing_comes, SHORT) as (door, address):
        for data in GARBAGE:
            await knock(address, data)
        await until(lambda: sum(door.strangers.snapshot().values()) == len(GARBAGE))
    assert not any(record.exc_info for record in caplog.records)
    assert "Traceback" not in caplog.text


async def knock(address: Address, data: bytes) -> bytes:
    """Connect, send `data`, and return what comes until the other side closes."""
    got = b""
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            try:
                await stream.send_all(data)
                while more := await stream.receive_some(1000):
                    got += more
            except trio.BrokenResourceError:
                pass
    return got


@pytest.mark.parametrize(("kind", "wrong"), [("tcp", "late"), ("tls", "late"), ("ws", "late"), ("open", "silent")])
async def test_one_that_says_nothing_is_gone_after_the_deadline(kind: str, wrong: str) -> None:
    """K8."""
    how = way(kind) if kind != "open" else way("tcp")._replace(listening=Credentials())
    end = End()
    async with doorway(how, end.use, SHORT) as (door, address):
        assert await knock(address, b"") == b""
        await until(lambda: door.strangers.snapshot())
    assert door.strangers.snapshot() == {wrong: 1}
    assert end.reasons == (["no frame came in 0.15 s"] if kind == "open" else [])


async def test_frames_that_cannot_be_read_are_counted_too() -> None:
    async with doorway(way("tcp")._replace(listening=Credentials()), End().use) as (door, address):
        assert await knock(address, TOKEN.preamble) == b""
        await until(lambda: door.strangers.snapshot() == {"garbage": 1})


async def test_only_so_many_wait_at_the_door_and_those_inside_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """K9."""
    monkeypatch.setattr(listening_module, "MOST_PENDING", 4)
    inside, friend = End(), End()
    async with doorway(way("tcp"), inside.use) as (door, address), trio.open_nursery() as nursery:
        nursery.start_soon(dial, address, Credentials(token=TOKEN), QUICK, friend.use)
        (await friend.connected()).send([chunk(0)])
        await inside.until(lambda: inside.bodies)
        waiting = [socket.create_connection((address.host, address.port)) for _ in range(4)]
        await until(lambda: door._pending == 4)
        for _ in range(3):
            assert await knock(address, b"") == b""
        assert door.strangers.snapshot() == {"crowd": 3}
        assert inside.link is not None
        inside.link.send([chunk(1)])
        await friend.until(lambda: friend.bodies)
        for sock in waiting:
            sock.close()
        await until(lambda: door._pending == 0)
        nursery.cancel_scope.cancel()


async def test_the_log_of_strangers_is_bounded(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.abc.Clock
) -> None:
    """K10."""
    strangers = Strangers("tcp:127.0.0.1:7070")
    for _ in range(1_000):
        strangers.turn_away("192.0.2.1:5", Wrong.TOKEN)
    strangers.turn_away("192.0.2.2:5", Wrong.HANDSHAKE, "what it sends is not TLS")
    await trio.sleep(LOG_INTERVAL)
    strangers.turn_away("192.0.2.2:5", Wrong.TOKEN)
    first, second, third = caplog.messages
    assert first == "tcp:127.0.0.1:7070: a connection of 192.0.2.1:5 was turned away: it did not show the right token"
    assert second.endswith("the opening handshake failed: what it sends is not TLS")
    assert third.endswith(
        "of 192.0.2.2:5 was turned away: it did not show the right token (999 others since the last line of this kind)"
    )
    assert strangers.snapshot() == {"token": 1_001, "handshake": 1}


async def test_without_a_token_the_bytes_are_those_of_the_frames_alone() -> None:
    """K7: The public protocol: what comes first on the socket is the first frame."""
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = parse_address(f"tcp:127.0.0.1:{listener[0].socket.getsockname()[1]}")
    end = End()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dial, address, Credentials(), QUICK, end.use)
        async with await listener[0].accept() as stream:
            (await end.connected()).send([chunk(0)])
            expected = len(chunk(0).body).to_bytes(4, "big") + chunk(0).body
            assert await stream.receive_some(1000) == expected
            nursery.cancel_scope.cancel()
    await listener[0].aclose()


def test_the_preamble_is_no_frame_and_hides_the_token() -> None:
    """K5."""
    assert len(TOKEN.preamble) == PREAMBLE_SIZE == 48
    assert TOKEN.preamble.startswith(PREAMBLE_MARK)
    assert int.from_bytes(TOKEN.preamble[:4], "big") > 1 << 30
    assert b"sesame" not in TOKEN.preamble
    assert "sesame" not in repr(TOKEN)
    assert TOKEN.opens(TOKEN.preamble)
    assert not TOKEN.opens(WRONG.preamble)
    assert not TOKEN.opens(TOKEN.preamble[:-1])


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (b"Bearer open-sesame-open-sesame", True),
        (b"bearer  open-sesame-open-sesame ", True),
        (b"Basic open-sesame-open-sesame", False),
        (b"Bearer open-sesame-open-sesam", False),
        (b"open-sesame-open-sesame", False),
        (b"", False),
    ],
)
def test_the_authorization_header(header: bytes, allowed: bool) -> None:
    """K6."""
    assert TOKEN.allows(header) is allowed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"short\n", "has 5 characters, and needs 16 to 1024"),
        (b"", "has 0 characters"),
        (b"two words that are long\n", "must be one word without blanks"),
        ("sésame-ouvre-toi-sésame".encode(), "must be ASCII"),
        (None, "cannot read the token file"),
    ],
)
def test_a_token_file_that_is_no_good(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_token(file)


def test_a_token_file_that_all_may_read_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text("  open-sesame-open-sesame\n")
    file.chmod(0o600)
    assert read_token(file).opens(TOKEN.preamble)
    assert caplog.messages == []
    file.chmod(0o644)
    read_token(file)
    assert "chmod 600" in caplog.text


# What may be listened on and dialled at all


@pytest.mark.parametrize(
    ("address", "kept", "remedy"),
    [
        ("tcp:0.0.0.0:7070", Credentials(), "write tls:0.0.0.0:7070, or give --token-file; --insecure"),
        ("ws://[::]:7070/x", Credentials(), r"write wss://\[::\]:7070/x, or give --token-file"),
        ("tcp:models.example:7070", Credentials(), "write tls:models.example:7070"),
    ],
)
def test_plain_links_beyond_this_machine_need_a_token(address: str, kept: Credentials, remedy: str) -> None:
    """K3."""
    parsed = parse_address(address)
    for check in ("check_listening", "check_dialling"):
        with pytest.raises(ConfigError, match=remedy):
            getattr(kept, check)(parsed)
        getattr(Credentials(token=TOKEN), check)(parsed)
        getattr(Credentials(insecure=True), check)(parsed)
        getattr(kept, check)(parsed._replace(host="127.0.0.1"))


def test_listening_with_tls_needs_a_certificate_and_a_way_to_know_the_others() -> None:
    """K3."""
    address, files = parse_address("tls:0.0.0.0:7070"), certificates()
    with pytest.raises(ConfigError, match="give --tls-cert and --tls-key"):
        Credentials(token=TOKEN).check_listening(address)
    certificate, key = files.server
    with pytest.raises(ConfigError, match="give --tls-ca, for client certificates that it has signed, or --token-file"):
        Credentials(tls_cert=certificate, tls_key=key).check_listening(address)
    Credentials(tls_cert=certificate, tls_key=key, token=TOKEN).check_listening(address)
    Credentials(tls_cert=certificate, tls_key=key, tls_ca=files.ca).check_listening(address)
    Credentials().check_dialling(parse_address("tls:models.example:7070"))


def test_files_of_certificates_that_are_no_good_are_named(tmp_path: Path) -> None:
    certificate, key = certificates().server
    _, other_key = certificates().client
    nothing, text = tmp_path / "none.pem", tmp_path / "text.pem"
    text.write_text("hello")
    address = parse_address("tls:127.0.0.1:7070")
    for kept, message in [
        (Credentials(tls_cert=certificate), "give both --tls-cert and --tls-key"),
        (Credentials(tls_cert=nothing, tls_key=key), rf"cannot read {nothing} \(--tls-cert\): No such file"),
        (Credentials(tls_cert=certificate, tls_key=other_key), "are no certificate and its key in PEM"),
        (Credentials(tls_cert=text, tls_key=key), "are no certificate and its key in PEM"),
        (Credentials(tls_ca=text), f"{text} holds no certificates in PEM"),
        (Credentials(tls_cert=certificate, tls_key=locked(tmp_path)), "the key is locked with a password"),
    ]:
        with pytest.raises(ConfigError, match=message):
            kept.check_dialling(address)


def locked(folder: Path) -> Path:
    """Return a key that asks for a password."""
    from cryptography.hazmat.primitives import serialization  # comes with trustme

    _, key = certificates().server
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    file = folder / "locked.key"
    file.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return file


def test_dialling_port_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="port 0 is for listening"):
        Credentials().check_dialling(parse_address("tcp:127.0.0.1:0"))


def test_old_versions_of_tls_are_refused() -> None:
    """K4."""
    kept = credentials("server")
    for context in (kept.server_context(), kept.client_context()):
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert kept.client_context().check_hostname
