"""The token that a dialling side shows, and the preamble that carries it (protocol-spec/links.md, Token)."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from pathlib import Path

from capdag.errors import ConfigError

PREAMBLE_MARK = b"CAPDAG-TOKEN-1\r\n"
"""Read as the length of a frame it is over a gigabyte: no peer takes it for one."""

PREAMBLE_SIZE = len(PREAMBLE_MARK) + hashlib.sha256().digest_size

_FEWEST, _MOST = 16, 1024

_log = logging.getLogger(__name__)


class Token:
    """A secret that both ends of a link know. It never appears in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.preamble = PREAMBLE_MARK + hashlib.sha256(text.encode()).digest()
        self.authorization = f"Bearer {text}".encode()

    def opens(self, preamble: bytes) -> bool:
        """Whether a peer's preamble is that of this token. Takes the same time for every wrong one."""
        return hmac.compare_digest(self.preamble, preamble)

    def allows(self, authorization: bytes) -> bool:
        """Whether an HTTP request's Authorization header carries this token. Takes the same time for every wrong one.

        The word Bearer may be spelt in any case.
        """
        scheme, _, offered = authorization.strip().partition(b" ")
        same = hmac.compare_digest(self._text.encode(), offered.strip())
        return same and scheme.lower() == b"bearer"

    def __repr__(self) -> str:
        return "<Token>"


def read_token(file: Path) -> Token:
    """Read a token from a file; blanks around it do not count. Raises ConfigError.

    A file that every user of the machine may read is mentioned in the log.
    """
    try:
        text = file.read_text(encoding="ascii").strip()
        mode = file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read the token file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the token in {file} must be ASCII; {_MAKE}") from None
    if not re.fullmatch(r"[!-~]*", text):
        raise ConfigError(f"the token in {file} must be one word without blanks; {_MAKE}")
    if not _FEWEST <= len(text) <= _MOST:
        raise ConfigError(f"the token in {file} has {len(text)} characters, and needs {_FEWEST} to {_MOST}; {_MAKE}")
    if mode & 0o004:
        _log.warning("every user of this machine may read the token file %s: chmod 600 it", file)
    return Token(text)


_MAKE = "a good one is made by: openssl rand -hex 32"
