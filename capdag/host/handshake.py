"""The host's half of the handshake with a new process: HELLO, identity, then ready (protocol-spec/host.md, Start)."""

from __future__ import annotations

import os
import uuid
from enum import Enum, auto

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    Frame,
    FrameType,
    FrameView,
    IdentityCheck,
    Limits,
    PoolState,
    hello_frame,
    identity_request,
    read_cartridge_hello,
    view_of,
)
from capdag.wire.manifest import Manifest, read_manifest

_NONCE_SIZE = 32


class Step(Enum):
    """What a handshake waits for."""

    HELLO = auto()
    IDENTITY = auto()
    DONE = auto()


class Handshake:
    """Fed every frame of a new process until `step` is DONE; then `limits`, `manifest` and `pools` are what it said."""

    def __init__(self, limits: Limits) -> None:
        self.step = Step.HELLO
        self.limits = limits
        self.manifest: Manifest | None = None
        self.pools: dict[str, PoolState] = {}
        self._rid = uuid.uuid4().bytes
        self._nonce = os.urandom(_NONCE_SIZE)
        self._check = IdentityCheck(self._nonce)

    def begin(self) -> list[FrameView]:
        """Return the host's HELLO."""
        return [view_of(hello_frame(self.limits))]

    def feed(self, view: FrameView) -> list[FrameView]:
        """Take one frame and return what is to be sent. Raises RemoteProtocolError for a wrong answer."""
        if self.step is Step.HELLO:
            hello = read_cartridge_hello(view)
            self.limits = self.limits.negotiate(hello.limits)
            self.manifest = read_manifest(hello.manifest)
            self.pools = hello.pools
            self.step = Step.IDENTITY
            return [view_of(frame) for frame in identity_request(self._rid, self._nonce)]
        if view.type is FrameType.HELLO:
            raise RemoteProtocolError("a second HELLO came where the answer to the identity check was due")
        if view.type is FrameType.HEARTBEAT:
            return [view_of(Frame(FrameType.HEARTBEAT, view.id))]
        # A cartridge may already log; only what answers the check is looked at.
        if view.id == self._rid and self._check.feed(view):
            self.step = Step.DONE
        return []
