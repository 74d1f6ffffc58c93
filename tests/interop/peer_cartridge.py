"""A cartridge built on the public `capdag` package. Runs in that package's own environment, never in ours."""

from __future__ import annotations

import os
from typing import Any

import vocabulary  # type: ignore[import-not-found]
from capdag.bifaci.cartridge_runtime import (  # type: ignore[import-not-found]
    WET_KEY_REQUEST,
    CartridgeRuntime,
    ClassifiedError,
    demux_peer_response,
)
from capdag.bifaci.frame import AttributionClass  # type: ignore[import-not-found]
from capdag.bifaci.manifest import CapManifest, default_group  # type: ignore[import-not-found]
from capdag.bifaci.pools import PoolDeclarations  # type: ignore[import-not-found]
from capdag.cap.caller import CapArgumentValue  # type: ignore[import-not-found]
from capdag.cap.definition import Cap, CapArg, CapOutput, StdinSource  # type: ignore[import-not-found]
from capdag.standard.caps import identity_cap  # type: ignore[import-not-found]
from capdag.urn.cap_urn import CapUrn  # type: ignore[import-not-found]
from ops import DryContext, Op, OpMetadata, WetContext  # type: ignore[import-not-found]

OCTETS = vocabulary.OCTETS

_heard = 0


class Handler(Op):  # type: ignore[misc]
    """An op that is named after its class and hands its request to `answer`."""

    async def perform(self, _dry: DryContext, wet: WetContext) -> None:
        self.answer(wet.get_required(WET_KEY_REQUEST))

    def answer(self, request: Any) -> None:
        raise NotImplementedError

    def metadata(self) -> OpMetadata:
        return OpMetadata.builder(type(self).__name__).description(type(self).__name__).build()


def write(request: Any, data: bytes) -> None:
    """Answer with bytes."""
    emitter = request.emitter()
    emitter.start(False)
    emitter.emit_cbor(data)


class Echo(Handler):
    def answer(self, request: Any) -> None:
        write(request, request.take_input().collect_all_bytes())


class Items(Handler):
    def answer(self, request: Any) -> None:
        stream = request.take_input().recv()
        request.emitter().start(True)
        while (found := stream.recv()) is not None:
            if isinstance(found, Exception):
                raise found
            request.emitter().emit_list_item(found[0])


class Steps(Handler):
    def answer(self, request: Any) -> None:
        for step in vocabulary.STEPS:
            request.emitter().progress(step, f"at {step}")
        request.emitter().emit_log("warn", AttributionClass.INPUT, vocabulary.WARNING)
        write(request, request.take_input().collect_all_bytes())


class Fail(Handler):
    def answer(self, request: Any) -> None:
        request.take_input().collect_all_bytes()
        code, attribution, message = vocabulary.FAILURE
        raise ClassifiedError(code, AttributionClass(attribution), message)


class Hold(Handler):
    def answer(self, request: Any) -> None:
        global _heard
        request.emitter().emit_log("info", AttributionClass.INTERNAL, "holding")
        try:
            request.take_input().collect_all_bytes()
        except Exception:
            _heard += 1
            raise


class Pour(Handler):
    def answer(self, request: Any) -> None:
        global _heard
        request.emitter().start(True)
        try:
            for _ in range(vocabulary.POURED):
                request.emitter().emit_list_item(vocabulary.PIECE)
        except Exception:
            _heard += 1
            raise


class Heard(Handler):
    def answer(self, request: Any) -> None:
        write(request, str(_heard).encode())


class Policy(Handler):
    def answer(self, request: Any) -> None:
        write(request, request.network().policy().as_str().encode())


class Die(Handler):
    def answer(self, request: Any) -> None:
        request.take_input().collect_all_bytes()
        request.emitter().emit_log("info", AttributionClass.INTERNAL, "dying")
        write(request, b"half an answer")
        request.emitter().flush()
        os._exit(vocabulary.EXIT_STATUS)


class Call(Handler):
    def answer(self, request: Any) -> None:
        cap, _, data = request.take_input().collect_all_bytes().partition(b"\n")
        frames = request.peer().invoke(cap.decode(), [CapArgumentValue(OCTETS, data)])
        write(request, demux_peer_response(frames).collect_bytes_forwarding(request.emitter(), 0.0, 1.0))


HANDLERS = {
    "echo": Echo, "items": Items, "steps": Steps, "fail": Fail, "hold": Hold, "pour": Pour, "heard": Heard, "die": Die,
    "call": Call, "policy": Policy,
}  # fmt: skip


def cap(function: str) -> Cap:
    """Return the declaration of a function."""
    urn = vocabulary.cap(function, os.environ[vocabulary.NAME_VARIABLE])
    is_sequence = function in vocabulary.SEQUENCES
    made = Cap(CapUrn.from_string(urn), vocabulary.FUNCTIONS[function], [function])
    made.args = [
        CapArg(
            media_urn=OCTETS, name="input", required=True, sources=[StdinSource(OCTETS)], is_sequence=is_sequence
        )
    ]  # fmt: skip
    made.add_output(
        CapOutput(media_urn=OCTETS, name="output", output_description="the answer", is_sequence=is_sequence)
    )
    return made


def main() -> None:
    """Serve every function, or tell the manifest."""
    caps = {function: cap(function) for function in HANDLERS}
    manifest = CapManifest(
        name=os.environ[vocabulary.NAME_VARIABLE], version="1.0.0", channel="release", registry_url=None,
        description="the public package", cap_groups=[default_group([identity_cap(), *caps.values()])],
    )  # fmt: skip
    capacity = int(os.environ.get(vocabulary.CAPACITY_VARIABLE, "0"))
    manifest = manifest.with_pool_declarations(PoolDeclarations(capacities={"all": capacity} if capacity else {}))
    runtime = CartridgeRuntime.with_manifest(manifest)
    for function, handler in HANDLERS.items():
        runtime.register_op_type(caps[function].urn.to_string(), handler)
    runtime.run()


if __name__ == "__main__":
    main()
