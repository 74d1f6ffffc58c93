"""The options and settings of links between a gateway and its hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec import UNSET

from capdag.config import LinksConfig, given
from capdag.errors import ConfigError

if TYPE_CHECKING:  # these rooms stand on the event loop, which --help must not load
    from capdag.transport import Address, Credentials
    from capdag.transport.dialling import LinkTimes

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Links = TypeVar("_Links", bound=LinksConfig)


def address_option(name: str, text: str) -> Callable[[_Command], _Command]:
    """Add an option for addresses, which may be repeated or hold several with commas between."""
    return click.option(name, multiple=True, metavar="ADDR[,ADDR…]", help=text)


def link_options(command: _Command) -> _Command:
    """Add the options that say who may be at the other end of a link."""
    for name, metavar, text in reversed(
        [
            ("--tls-cert", "FILE", "Certificate (PEM) that this side shows."),
            ("--tls-key", "FILE", "Its key."),
            ("--tls-ca", "FILE", "What the other side's certificate must be signed by."),
            ("--token-file", "FILE", "A secret that both sides know; the dialling side shows it."),
        ]
    ):
        command = click.option(name, metavar=metavar, help=text)(command)
    return click.option("--insecure", is_flag=True, help="Allow links that strangers may open or read.")(command)


def settle_links(table: _Links, asked: dict[str, Any]) -> _Links:
    """Return a table of the configuration with what the command line overrides.

    Addresses given there are all that count; what the file has for others, and these cannot use, is left out.
    """
    changed = {key: value for key, value in asked.items() if value}
    places = {key for key in asked if key in _PLACES}
    if places & changed.keys():
        addresses = read_addresses(text for key in places for text in changed.get(key, ()))
        idle: dict[str, Any] = dict.fromkeys(_idle_files(addresses), UNSET)
        changed = {**idle, **dict.fromkeys(places, ()), **changed}
    return msgspec.structs.replace(table, **changed)


def _idle_files(addresses: Sequence[Address]) -> set[str]:
    """Return which files of credentials none of the addresses can use."""
    from capdag.transport import Scheme

    idle = set() if any(address.is_encrypted for address in addresses) else {"tls_cert", "tls_key", "tls_ca"}
    return idle if any(address.scheme is not Scheme.UNIX for address in addresses) else {*idle, "token_file"}


def read_addresses(texts: Iterable[str]) -> list[Address]:
    """Parse addresses, several of which may stand in one text. Raises AddressError."""
    from capdag.transport import parse_address

    return [parse_address(part.strip()) for text in texts for part in text.split(",")]


def read_credentials(table: LinksConfig, addresses: Sequence[Address]) -> Credentials:
    """Return what this side shows and asks for. Raises ConfigError for what none of the addresses can use."""
    from capdag.transport import Credentials, read_token

    files = {key: Path(value).expanduser() for key, value in given(table).items() if key in _FILES}
    for key in files.keys() & _idle_files(addresses):
        option = f"--{key.replace('_', '-')}"
        if key == "token_file":
            raise ConfigError(f"{option} is given, but unix sockets go by the mode of their file and ask for no token")
        raise ConfigError(f"{option} is given, but no address begins with tls: or wss:")
    token_file = files.pop("token_file", None)
    token = None if token_file is None else read_token(token_file)
    return Credentials(**files, token=token, insecure=table.insecure)


_PLACES = ("hosts", "accept", "listen", "connect")

_FILES = ("tls_cert", "tls_key", "tls_ca", "token_file")


def read_times(table: LinksConfig) -> LinkTimes:
    """Return how long the other side may take."""
    from capdag.transport.dialling import LinkTimes

    names = {"handshake_timeout": "handshake", "silence": "silence"}
    return LinkTimes(**{names[key]: value for key, value in given(table).items() if key in names})
