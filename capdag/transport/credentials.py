"""Who may be at the other end of a link: TLS with certificates, a token, or nobody but this machine.

protocol-spec/links.md, Who may connect.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from capdag.errors import ConfigError

from .addresses import Address, Scheme
from .tls import TlsContext
from .tokens import Token


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What this side shows, and asks for.

    `tls_cert` with `tls_key` is what this side proves itself by; `tls_ca` holds the certificates that the other side's
    must be signed by (a dialling side without it trusts the system's). `insecure` allows links that any stranger may
    open or read.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token: Token | None = None
    insecure: bool = False

    def server_context(self) -> TlsContext:
        """Return the TLS settings of a listening side: with `tls_ca`, a client certificate is needed.

        Raises ConfigError for files that are missing, cannot be read or do not fit each other.
        """
        if self.tls_cert is None or self.tls_key is None:
            raise ConfigError("listening with TLS needs a certificate and its key: give --tls-cert and --tls-key")
        context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.tls_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> TlsContext:
        """Return the TLS settings of a dialling side. Raises ConfigError as `server_context` does."""
        context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.tls_ca is None:
            context.load_default_certs()
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("a certificate and its key go together: give both --tls-cert and --tls-key, or neither")
        if self.tls_cert is not None and self.tls_key is not None:
            _check_file(self.tls_cert, "--tls-cert")
            _check_file(self.tls_key, "--tls-key")
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key, password=_no_password)
            except (ssl.SSLError, _LockedKeyError) as error:
                why = str(error) if isinstance(error, _LockedKeyError) else _reason(error)
                raise ConfigError(
                    f"{self.tls_cert} and {self.tls_key} are no certificate and its key in PEM: {why}"
                ) from None
        if self.tls_ca is not None:
            _check_file(self.tls_ca, "--tls-ca")
            try:
                context.load_verify_locations(self.tls_ca)
            except ssl.SSLError as error:
                raise ConfigError(f"{self.tls_ca} holds no certificates in PEM: {_reason(error)}") from None

    def check_listening(self, address: Address) -> None:
        """Raise ConfigError if listening at `address` would let strangers in, or cannot work."""
        if address.is_encrypted:
            self.server_context()
            if self.tls_ca is None and self.token is None:
                self._need(address, "give --tls-ca, for client certificates that it has signed, or --token-file")
        elif self.token is None:
            self._need(address, f"{_encrypt(address)}, or give --token-file")

    def check_dialling(self, address: Address) -> None:
        """Raise ConfigError if what goes to `address` would be open to anybody on the way, or cannot work."""
        if address.scheme is not Scheme.UNIX and address.port == 0:
            raise ConfigError(f"{address}: port 0 is for listening, where it takes a free one; give the port there")
        if address.is_encrypted:
            self.client_context()
        elif self.token is None:
            self._need(address, f"{_encrypt(address)}, or give --token-file")

    def _need(self, address: Address, remedy: str) -> None:
        if not address.is_local and not self.insecure:
            raise ConfigError(
                f"{address} is open to strangers: anybody who reaches it could use the models: {remedy}; --insecure"
                " allows it all the same"
            )


class _LockedKeyError(Exception):
    """A key asks for a password, and nobody is there to type one."""


def _no_password() -> str:
    raise _LockedKeyError("the key is locked with a password; write it without one, readable by this user only")


def _check_file(file: Path, option: str) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot read {file} ({option}): {error.strerror}") from None


def _reason(error: BaseException) -> str:
    return getattr(error, "reason", None) or str(error)


def _encrypt(address: Address) -> str:
    scheme = Scheme.WSS if address.is_websocket else Scheme.TLS
    return f"write {address._replace(scheme=scheme)}"
