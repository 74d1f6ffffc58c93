"""Where links meet, as people write it (protocol-spec/links.md, Addresses)."""

from __future__ import annotations

import os
import re
import socket
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import ip_address
from typing import NamedTuple

from capdag.errors import ConfigError

_LONGEST_SOCKET_PATH = 107
"""Bytes of a unix socket's path that Linux takes."""


class AddressError(ConfigError):
    """A text is no address, or one that cannot be used in its place. The text says how to write it."""


class Scheme(StrEnum):
    """How the bytes of a link travel."""

    UNIX = "unix"
    TCP = "tcp"
    TLS = "tls"
    WS = "ws"
    WSS = "wss"


_SHAPES = {
    Scheme.UNIX: "unix:PATH",
    Scheme.TCP: "tcp:HOST:PORT",
    Scheme.TLS: "tls:HOST:PORT",
    Scheme.WS: "ws://HOST:PORT/PATH",
    Scheme.WSS: "wss://HOST:PORT/PATH",
}


class Address(NamedTuple):
    """One parsed address. `path` is that of the unix socket or of the URL; `host` has no brackets."""

    scheme: Scheme
    host: str
    port: int
    path: str

    @property
    def is_encrypted(self) -> bool:
        """True if the bytes go through TLS."""
        return self.scheme in (Scheme.TLS, Scheme.WSS)

    @property
    def is_websocket(self) -> bool:
        """True if the bytes go in WebSocket messages."""
        return self.scheme in (Scheme.WS, Scheme.WSS)

    @property
    def is_local(self) -> bool:
        """True if no other machine can reach it, or is reached by it."""
        if self.scheme is Scheme.UNIX or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.scheme is Scheme.UNIX:
            return f"unix:{self.path}"
        slashes = "//" if self.is_websocket else ""
        return f"{self.scheme}:{slashes}{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """HOST:PORT, the host in brackets if it is an IPv6 address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse an address. Raises AddressError."""
    word, colon, rest = text.partition(":")
    try:
        scheme = Scheme(word.lower())
    except ValueError:
        raise AddressError(_no_scheme(text, word if colon else "")) from None
    if not rest:
        raise _wrong(text, scheme, "nothing follows the colon")
    if scheme is Scheme.UNIX:
        return Address(scheme, "", 0, _socket_path(rest))
    path = ""
    if scheme in (Scheme.WS, Scheme.WSS):
        if not rest.startswith("//"):
            raise _wrong(text, scheme, "two slashes are missing")
        authority, _, path = rest[2:].partition("/")
        rest, path = authority, f"/{path}"
        if re.search(r"[?#\s]", path) or not path.isascii():
            raise _wrong(text, scheme, "the path may hold neither ?, # nor blanks")
    elif "/" in rest:
        raise _wrong(text, scheme, "it has no path")
    host, port = _host_and_port(text, scheme, rest)
    return Address(scheme, host, port, path)


def _no_scheme(text: str, word: str) -> str:
    close = get_close_matches(word.lower(), list(Scheme), n=1) if word else []
    hint = f"did you mean {close[0]}:? " if close else ""
    return f"{text!r} is no address: {hint}write one of {', '.join(_SHAPES.values())}"


def _wrong(text: str, scheme: Scheme, why: str) -> AddressError:
    return AddressError(f"{text!r} is no address: {why}; write {_SHAPES[scheme]}")


def _socket_path(path: str) -> str:
    if not hasattr(socket, "AF_UNIX"):
        raise AddressError(f"unix:{path}: this system has no unix sockets; use tcp:127.0.0.1:PORT")
    size = len(os.fsencode(path))
    if size > _LONGEST_SOCKET_PATH:
        raise AddressError(
            f"the path {path!r} has {size} bytes, and that of a unix socket may have {_LONGEST_SOCKET_PATH}: choose a"
            " folder with a shorter name, such as one under $XDG_RUNTIME_DIR"
        )
    if "\0" in path:
        raise AddressError(f"the path {path!r} holds a zero byte: a unix socket is named by a file")
    return path


def _host_and_port(text: str, scheme: Scheme, authority: str) -> tuple[str, int]:
    host, colon, digits = authority.rpartition(":")
    if "@" in authority:
        raise _wrong(text, scheme, "names and passwords have no place in it (give a token with --token-file)")
    if not colon or authority.endswith("]"):
        raise _wrong(text, scheme, "the port is missing")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _wrong(text, scheme, f"an IPv6 address stands in brackets, as [{host}]:{digits or 'PORT'}")
    if not host:
        raise _wrong(text, scheme, "the host is missing (0.0.0.0 and [::] stand for every address of this machine)")
    if not re.fullmatch(r"[0-9]{1,5}", digits) or int(digits) > 65_535:
        raise _wrong(text, scheme, f"the port {digits!r} is not a number from 0 to 65535")
    return host, int(digits)
