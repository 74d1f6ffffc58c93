"""The opening handshake of TLS, and its troubles in plain words (protocol-spec/links.md, Who may connect)."""

from __future__ import annotations

import ssl
from typing import Any

import trio

REFUSED = "this side's certificate is not accepted"
"""What stands in the words for what the other side says against this side's certificate."""

_LAST_WORDS = 1.0
"""Seconds in which the other side may take an alert; then the connection is closed all the same."""

_PEERS_VERSION = "no version of TLS is known to both sides; 1.2 is the oldest that is taken"

_WORDS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"{REFUSED}: none is shown, and the other side wants one (--tls-cert)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": f"{REFUSED}: it has expired, or is not valid yet; renew it",
    "TLSV1_ALERT_UNKNOWN_CA": f"{REFUSED}: it is not signed by the CA that the other side goes by (its --tls-ca)",
    "SSLV3_ALERT_BAD_CERTIFICATE": f"{REFUSED}: it is not valid for the other side; was it dialled by another name?",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": f"{REFUSED}: the other side does not say why",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": f"{REFUSED}: it is revoked",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": f"{REFUSED}: it is of a kind that is made for other purposes",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refuses, which may be for want of a certificate (--tls-cert)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "WRONG_VERSION_NUMBER": "what it sends is not TLS",
    "HTTP_REQUEST": "it sends plain HTTP, not TLS",
    "UNEXPECTED_EOF_WHILE_READING": "the connection was closed in the middle",
    "TLSV1_ALERT_PROTOCOL_VERSION": _PEERS_VERSION,
    "UNSUPPORTED_PROTOCOL": _PEERS_VERSION,
}

_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64
"""OpenSSL's numbers for what is wrong with a certificate."""


class TlsContext(ssl.SSLContext):
    """Settings of TLS that remember where the connection made last leaves what it has to send."""

    outgoing: ssl.MemoryBIO

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        self.outgoing = outgoing
        return super().wrap_bio(incoming, outgoing, *args, **kwargs)


async def shake_hands(
    stream: trio.SocketStream, context: TlsContext, server_hostname: str | None = None
) -> trio.SSLStream[trio.SocketStream]:
    """Return the encrypted stream; without a name of the server this side is the server.

    Raises BrokenResourceError, from what OpenSSL says, when the handshake fails: the other side has been told why then,
    which trio leaves out.
    """
    tls = trio.SSLStream(
        stream, context, server_hostname=server_hostname, server_side=server_hostname is None, https_compatible=True
    )
    outgoing = context.outgoing
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError:
        with trio.move_on_after(_LAST_WORDS):
            await _say(stream, outgoing.read())
        raise
    return tls


async def _say(stream: trio.SocketStream, alert: bytes) -> None:
    """Send an alert, and read on: what lies unread when a socket is closed makes the system drop what it has sent."""
    try:
        if alert:
            await stream.send_all(alert)
            await stream.send_eof()
            while await stream.receive_some():
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


def is_about_certificates(error: BaseException | None) -> bool:
    """Return whether a certificate was not accepted, by either side, or is missing."""
    reason = getattr(error, "reason", None) or ""
    return isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in reason or "UNKNOWN_CA" in reason


def in_words(error: BaseException) -> str:
    """Return what is wrong, and what to do, for any error of a stream."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error)
    if isinstance(error, ssl.SSLError) and error.reason:
        return _WORDS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error)


def _unverified(error: ssl.SSLCertVerificationError) -> str:
    code, message = error.verify_code, error.verify_message.rstrip(".")
    if code == _EXPIRED:
        return "its certificate has expired: renew it"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: is the clock right on both machines?"
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        listing = "openssl x509 -noout -ext subjectAltName -in CERT"
        return f"its certificate is for another name ({message}): dial a name that is in it ({listing} lists them)"
    return f"its certificate is not accepted ({message}): is --tls-ca the one that signed it?"
