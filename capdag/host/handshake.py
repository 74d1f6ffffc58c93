"""The host's half of the handshake with a new process: HELLO, identity, then ready (protocol-spec/host.md, Start)."""

from __future__ import annotations

import os
import uuid
from enum import Enum, auto

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    CartridgeHello,
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
from capdag.wire.heartbeats import Beat, Probes
from capdag.wire.limits import check_least
from capdag.wire.manifest import Manifest, read_manifest
from capdag.wire.manifest_rules import manifest_faults, pool_faults

_NONCE_SIZE = 32


class Step(Enum):
    """What a handshake waits for."""

    HELLO = auto()
    IDENTITY = auto()
    DONE = auto()


class Handshake:
    """Fed every frame of a new process until `step` is DONE; then `limits`, `manifest` and `pools` are what it said.

    `tolerated`: in words, what of it breaks rules that this host can do without. `lost`: frames that went nowhere.
    """

    def __init__(self, limits: Limits) -> None:
        self.step = Step.HELLO
        self.limits = limits
        self.manifest: Manifest | None = None
        self.pools: dict[str, PoolState] = {}
        self.tolerated: list[str] = []
        self.lost: list[FrameView] = []
        self._probes = Probes()
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
            check_least(hello.limits, self.limits)
            self.limits = self.limits.negotiate(hello.limits)
            self.manifest = read_manifest(hello.manifest)
            self.pools = hello.pools
            self.tolerated = self._judge(hello, self.manifest)
            self.step = Step.IDENTITY
            return [view_of(frame) for frame in identity_request(self._rid, self._nonce)]
        if view.type is FrameType.HELLO:
            raise RemoteProtocolError("a second HELLO came where the answer to the identity check was due")
        # All of it is one moment: in so short a time nobody has to probe often.
        if view.type is FrameType.HEARTBEAT and self._probes.judge(view, 0.0) is Beat.PROBE:
            return [view_of(Frame(FrameType.HEARTBEAT, view.id))]
        if view.id != self._rid:
            self.lost.append(view)
        elif self._check.feed(view):
            self.step = Step.DONE
        return []

    @staticmethod
    def _judge(hello: CartridgeHello, manifest: Manifest) -> list[str]:
        """Return the faults of a HELLO that can be lived with. Raises RemoteProtocolError for one that cannot."""
        faults = manifest_faults(hello.manifest)
        refused = next((fault.text for fault in faults if fault.is_fatal), None)
        if refused is not None:
            raise RemoteProtocolError(refused)
        return [fault.text for fault in faults] + [f"HELLO: {fault}" for fault in pool_faults(manifest, hello.pools)]
