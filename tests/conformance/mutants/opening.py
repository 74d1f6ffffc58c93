"""Faults of the handshake, and of the manifest."""

from __future__ import annotations

import json
from typing import Any

from capdag.wire import (
    ALL_POOL,
    DEFAULT_LIMITS,
    Failure,
    Frame,
    FrameType,
    FrameView,
    Limits,
    NetworkPolicy,
    PoolState,
    encode_frame,
    end_frame,
    hello_frame,
    policy_frame,
)
from tests.conformance.mutants._entry import finds
from tests.conformance.plain import ECHO, Plain, Served


@finds("hello")
class OldVersion(Plain):
    def hello(self) -> None:
        said = hello_frame(self.limits, manifest=json.dumps(self.manifest()).encode(), pools=self.pools())
        said.meta = {**(said.meta or {}), "version": 5}
        self.send(said)


@finds("hello-first")
class GreetsUnasked(Plain):
    own_limits = Limits(1 << 20, 1024, 16, 4)

    def begin(self) -> None:
        super().hello()

    def hello(self) -> None:
        pass


@finds("hello-limits")
class OwnLimits(Plain):
    def answered_limits(self) -> Limits:
        return DEFAULT_LIMITS


@finds("hello-again")
class DeafToHello(Plain):
    def second_hello(self, view: FrameView) -> None:
        pass


@finds("hello-pools")
class NoPoolOfAll(Plain):
    def hello_pools(self) -> dict[str, PoolState]:
        return {name: pool for name, pool in self.pools().items() if name != ALL_POOL}


@finds("identity")
class ForgetsTheNonce(Plain):
    def identity(self, served: Served, payload: bytes) -> bytes:
        return payload[:-1] + bytes([payload[-1] ^ 1]) if served.xid is None else payload


@finds("identity-text")
class WantsBytesOfIdentity(Plain):
    def identity(self, served: Served, payload: bytes) -> bytes:
        return payload if payload[0] >> 5 == 2 else b"\x41?"


@finds("early-request")
class ServesBeforePolicy(Plain):
    def refusal(self, view: FrameView) -> Failure | None:
        self.policies += 1
        return super().refusal(view)


@finds("early-call")
class CallsAtOnce(Plain):
    def hello(self) -> None:
        super().hello()
        self.send(Frame(FrameType.REQ, b"a call too early", cap=ECHO, payload=b"", meta={"parent_rid": 1}))


@finds("policy")
class StopsAtFullPolicy(Plain):
    def take(self, view: FrameView) -> None:
        super().take(view)
        if view.type is FrameType.POLICY and view.meta["network"] == NetworkPolicy.FULL:
            self.exit = 0


@finds("forbidden-frames")
class TellsThePolicy(Plain):
    def end(self, served: Served) -> None:
        super().end(served)
        if served.cap == ECHO:
            self.send(policy_frame(NetworkPolicy.FULL))


@finds("stdout")
class DuplicatesAKey(Plain):
    def end(self, served: Served) -> None:
        if served.cap == ECHO:
            body = encode_frame(end_frame(served.rid, xid=served.xid))
            self.out.append(bytes([body[0] + 1]) + body[1:] + b"\x09\xf5")
        super().end(served)


@finds("relay-frames")
class BearsRelays(Plain):
    def relay_frame(self) -> None:
        pass


@finds("calls")
class CallsWithoutParent(Plain):
    called = False

    def start(self, served: Served, *, is_sequence: bool = False) -> None:
        if served.cap == ECHO and not self.called:
            self.called = True
            self.send(Frame(FrameType.REQ, b"a call of no one", cap=ECHO, payload=b""))
        super().start(served, is_sequence=is_sequence)


@finds("manifest")
class UnknownKeyInAnArgument(Plain):
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        manifest["cap_groups"][0]["caps"][1]["args"][0]["help"] = "bytes"
        return manifest


@finds("manifest-identity")
class NoIdentity(Plain):
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        del manifest["cap_groups"][0]["caps"][0]
        return manifest


@finds("manifest-urns")
class UnsortedUrn(Plain):
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        manifest["cap_groups"][0]["caps"][1]["urn"] = "cap:plain-echo;in=media:octets;out=media:octets"
        return manifest


@finds("manifest-arguments")
class NothingOnStdin(Plain):
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest()
        manifest["cap_groups"][0]["caps"][1]["args"][0]["sources"] = [{"position": 0}]
        return manifest


@finds("manifest-command")
class PrintsAnother(Plain):
    def printed(self) -> tuple[int | None, bytes]:
        return 0, b"{}"
