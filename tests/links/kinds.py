"""Every kind of link over a real socket, with the credentials that it is meant for."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import trio
import trustme

from capdag.transport import Address, Credentials, Token, parse_address
from capdag.transport.background import background
from capdag.transport.dialling import LinkTimes, Use, dial
from capdag.transport.listening import Doorway

TOKEN = Token("open-sesame-open-sesame")

QUICK = LinkTimes(handshake=5.0, silence=10.0)


class Certificates(NamedTuple):
    """PEM files: of a CA, of a server named localhost and 127.0.0.1, of a client, and of a client that it never saw."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]
    stranger: tuple[Path, Path]


@cache
def certificates() -> Certificates:
    """Make them once a run; they go with the process."""
    folder = Path(_folder().name)
    ours, other = trustme.CA(), trustme.CA()
    ca = folder / "ca.pem"
    ours.cert_pem.write_to_path(ca)
    issued = {
        "server": ours.issue_cert("localhost", "127.0.0.1"),
        "client": ours.issue_cert("client.example"),
        "stranger": other.issue_cert("stranger.example"),
    }
    pairs = {}
    for name, leaf in issued.items():
        pairs[name] = folder / f"{name}.pem", folder / f"{name}.key"
        leaf.cert_chain_pems[0].write_to_path(pairs[name][0])
        leaf.private_key_pem.write_to_path(pairs[name][1])
    return Certificates(ca, **pairs)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="capdag-certificates-", ignore_cleanup_errors=True)


def credentials(name: str, *, token: bool = False) -> Credentials:
    """Return those of `server`, `client` or `stranger`, all of which trust our CA."""
    found = certificates()
    certificate, key = getattr(found, name)
    return Credentials(tls_cert=certificate, tls_key=key, tls_ca=found.ca, token=TOKEN if token else None)


class Way(NamedTuple):
    """An address to listen at, and the credentials of both sides."""

    address: str
    listening: Credentials
    dialling: Credentials


def way(kind: str, folder: Path | None = None) -> Way:
    """Return how links of a kind are made: tcp and ws with a token, tls by certificates, wss with both."""
    shown = Credentials(token=TOKEN)
    match kind:
        case "unix":
            assert folder is not None
            return Way(f"unix:{folder}/link.sock", Credentials(), Credentials())
        case "tcp":
            return Way("tcp:127.0.0.1:0", shown, shown)
        case "ws":
            return Way("ws://127.0.0.1:0/capdag", shown, shown)
        case "tls":
            return Way("tls:127.0.0.1:0", credentials("server"), credentials("client"))
        case _:
            return Way("wss://localhost:0/capdag", credentials("server", token=True), credentials("client", token=True))


KINDS = ("tcp", "tls", "ws", "wss")


@asynccontextmanager
async def doorway(way: Way, use: Use, times: LinkTimes = QUICK) -> AsyncIterator[tuple[Doorway, Address]]:
    """Listen during the block."""
    door = Doorway(parse_address(way.address), way.listening, times)
    async with background() as nursery:
        address = await nursery.start(door.serve, use)
        yield door, address


@asynccontextmanager
async def linked(way: Way, listening: Use, dialling: Use) -> AsyncIterator[Address]:
    """Have one link during the block, whose ends are given to the two uses."""
    async with doorway(way, listening) as (_, address), trio.open_nursery() as nursery:
        nursery.start_soon(dial, address, way.dialling, QUICK, dialling)
        yield address
        nursery.cancel_scope.cancel()
