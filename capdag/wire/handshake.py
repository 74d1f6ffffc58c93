"""HELLO in both directions and the identity check, as values (protocol-spec/wire.md, Handshake)."""

from __future__ import annotations

from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError

from .cbor import encode_value
from .checksum import fnv1a_64
from .frame import PROTOCOL_VERSION, Frame, FrameType, MessageId, show_value
from .limits import Limits, read_limits
from .link_life import IDENTITY_CAP, Direction, LinkSide
from .meta import body_end_frame, failure_of, is_success
from .pools import Pools, PoolState, read_pools, write_pools
from .streams import InStreams
from .view import FrameView


class CartridgeHello(NamedTuple):
    """What a cartridge answered: limits already reduced, the manifest's JSON bytes, its pools."""

    limits: Limits
    manifest: bytes
    pools: dict[str, PoolState]


def hello_frame(limits: Limits, *, manifest: bytes | None = None, pools: Pools | None = None) -> Frame:
    """Build a HELLO; the cartridge's has a manifest and pools, the host's neither."""
    meta: dict[str, Any] = {**limits._asdict(), "version": PROTOCOL_VERSION}
    if manifest is not None:
        meta["manifest"] = manifest
    if pools is not None:
        meta["pools"] = write_pools(pools)
    return Frame(FrameType.HELLO, 0, meta=meta)


def read_hello(view: FrameView) -> Limits:
    """Read the host's HELLO (the cartridge's side). Raises RemoteProtocolError."""
    return _read_greeting(view, Direction.HOST_TO_CARTRIDGE)


def _read_greeting(view: FrameView, direction: Direction) -> Limits:
    LinkSide(direction).take(view)
    if "version" not in view.meta:
        keys = ", ".join(map(show_value, view.meta)) or "nothing"
        raise RemoteProtocolError(f"HELLO needs version {PROTOCOL_VERSION} in its meta, which holds {keys}")
    version = view.meta["version"]
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"HELLO says protocol version {show_value(version)}; this side speaks {PROTOCOL_VERSION}"
        )
    return read_limits(view.meta)


def read_cartridge_hello(view: FrameView) -> CartridgeHello:
    """Read a cartridge's HELLO (the host's side). Raises RemoteProtocolError."""
    limits = _read_greeting(view, Direction.CARTRIDGE_TO_HOST)
    manifest = view.meta.get("manifest")
    if not isinstance(manifest, bytes):
        raise RemoteProtocolError(f"HELLO needs manifest as bytes of JSON, not {show_value(manifest)}")
    return CartridgeHello(limits, manifest, read_pools(view.meta.get("pools")))


def identity_request(rid: MessageId, nonce: bytes) -> list[Frame]:
    """Build the five frames of the direct identity check: no XID, seq 0 on all, nonce as a CBOR byte string."""
    return _identity_frames(rid, None, "identity-verify", encode_value(nonce))


DEFERRED_PROBE = b"fbifaci"
"""Payload of the deferred identity check: the CBOR text "bifaci", which must come back byte for byte."""


def deferred_identity_request(rid: MessageId, xid: MessageId) -> list[Frame]:
    """Build the identity check of a host that offers its first cap later: with XID, seq 0 on all."""
    return _identity_frames(rid, xid, "identity-verify-runtime", DEFERRED_PROBE)


def _identity_frames(rid: MessageId, xid: MessageId | None, stream: str, payload: bytes) -> list[Frame]:
    frames = [
        Frame(FrameType.REQ, rid, cap=IDENTITY_CAP, content_type="application/cbor", payload=b""),
        Frame(FrameType.STREAM_START, rid, stream_id=stream, media_urn="media:"),
        Frame(FrameType.CHUNK, rid, stream_id=stream, payload=payload, chunk_index=0, checksum=fnv1a_64(payload)),
        Frame(FrameType.STREAM_END, rid, stream_id=stream, chunk_count=1),
        body_end_frame(rid),
    ]
    for frame in frames:
        frame.routing_id = xid
    return frames


class IdentityCheck:
    """Collects the answer to `identity_request`. Feed it every frame until `feed` returns True.

    With `deferred`, the answer to `deferred_identity_request`: its payloads are compared as they are.
    """

    def __init__(self, nonce: bytes = DEFERRED_PROBE, *, deferred: bool = False) -> None:
        self._nonce = nonce
        self._deferred = deferred
        self._echo = b""
        self._stream: str | None = None
        # Nobody grants: an answer in more pieces than the nonce has bytes is none.
        self._streams = InStreams(len(nonce))

    def feed(self, view: FrameView) -> bool:
        """Take one frame; True when the identity is proved. Raises RemoteProtocolError when it is not."""
        if view.type is FrameType.ERR:
            failure = failure_of(view.meta)
            code, message = show_value(failure.code), show_value(failure.message)
            raise RemoteProtocolError(f"the identity check ended with ERR {code}: {message}")
        if view.type is FrameType.STREAM_START:
            self._start(view)
        elif view.type is FrameType.CHUNK:
            self._collect(view)
        elif view.type is FrameType.STREAM_END:
            self._streams.of(view).end(view)
        elif view.type is FrameType.END:
            self._end(view)
            return True
        return False

    def _start(self, view: FrameView) -> None:
        if self._stream is not None:
            raise RemoteProtocolError(
                f"the identity answer must be one stream, and {show_value(view.stream_id)} comes after {self._stream}"
            )
        self._stream = show_value(view.stream_id)
        self._streams.start(view)

    def _end(self, view: FrameView) -> None:
        if not is_success(view.meta):
            said = show_value(view.meta["exit_code"]) if "exit_code" in view.meta else "no exit_code"
            raise RemoteProtocolError(
                f"the END of the identity answer must have exit_code 0, an integer; it has {said}"
            )
        self._streams.check_ended()
        if self._stream is None:
            raise RemoteProtocolError("the identity answer has no stream: the nonce must come back in one")
        if self._echo != self._nonce:
            raise RemoteProtocolError(
                f"the identity answer is not the nonce that was sent: {_hex(self._echo)}, not {_hex(self._nonce)}"
            )

    def _collect(self, view: FrameView) -> None:
        values = self._streams.of(view).chunk(view).values
        for piece in [view.fields.get(6) or b""] if self._deferred else values:
            if not isinstance(piece, bytes):
                raise RemoteProtocolError(f"the identity answer must come back as bytes, not {type(piece).__name__}")
            self._echo += piece
        if len(self._echo) > len(self._nonce):
            raise RemoteProtocolError(
                f"the identity answer is longer than the nonce that was sent, {len(self._nonce)} bytes"
            )


def _hex(data: bytes) -> str:
    return f"{len(data)} bytes {data.hex()}" if data else "0 bytes"
