"""The caps of `sdk_caps` on the public `capdag` package, as a black box, in its own environment."""

from __future__ import annotations

import time
from typing import Any

import sdk_caps  # type: ignore[import-not-found]
from capdag.bifaci.cartridge_runtime import WET_KEY_REQUEST, CartridgeRuntime  # type: ignore[import-not-found]
from capdag.bifaci.manifest import CapManifest, default_group  # type: ignore[import-not-found]
from capdag.cap.definition import Cap, CapArg, CapOutput, StdinSource  # type: ignore[import-not-found]
from capdag.standard.caps import identity_cap  # type: ignore[import-not-found]
from capdag.urn.cap_urn import CapUrn  # type: ignore[import-not-found]
from ops import DryContext, Op, OpMetadata, WetContext  # type: ignore[import-not-found]


class Handler(Op):  # type: ignore[misc]
    """An op that is named after its class and answers with `answer`."""

    async def perform(self, _dry: DryContext, wet: WetContext) -> None:
        self.answer(wet.get_required(WET_KEY_REQUEST))

    def answer(self, request: Any) -> None:
        raise NotImplementedError

    def metadata(self) -> OpMetadata:
        return OpMetadata.builder(type(self).__name__).description(type(self).__name__).build()


class Pieces(Handler):
    def answer(self, request: Any) -> None:
        count = int(request.take_input().collect_all_bytes())
        emitter = request.emitter()
        emitter.start(True)
        for _ in range(count):
            emitter.emit_list_item(sdk_caps.PIECE)


class Blocks(Handler):
    def answer(self, request: Any) -> None:
        count = int(request.take_input().collect_all_bytes())
        emitter = request.emitter()
        emitter.start(False)
        for _ in range(count):
            emitter.emit_cbor(sdk_caps.BLOCK)


class Echo(Handler):
    def answer(self, request: Any) -> None:
        data = request.take_input().collect_all_bytes()
        request.emitter().start(False)
        request.emitter().emit_cbor(data)


class Cpu(Handler):
    def answer(self, request: Any) -> None:
        request.take_input().collect_all_bytes()
        request.emitter().start(False)
        request.emitter().emit_cbor(str(time.process_time_ns()).encode())


HANDLERS = {"pieces": Pieces, "blocks": Blocks, "echo": Echo, "cpu": Cpu}


def cap(function: str) -> Cap:
    """Return the declaration of a function."""
    octets = sdk_caps.OCTETS
    made = Cap(CapUrn.from_string(sdk_caps.cap_of(function)), function, [function])
    made.args = [CapArg(media_urn=octets, name="input", required=True, sources=[StdinSource(octets)])]
    made.add_output(
        CapOutput(
            media_urn=octets, name="output", output_description="bytes", is_sequence=sdk_caps.CAPS[function]
        )
    )  # fmt: skip
    return made


def main() -> None:
    """Serve every function."""
    caps = {function: cap(function) for function in HANDLERS}
    manifest = CapManifest(
        name=sdk_caps.NAME, version="1.0.0", channel="release", registry_url=None, description="measured",
        cap_groups=[default_group([identity_cap(), *caps.values()])],
    )  # fmt: skip
    runtime = CartridgeRuntime.with_manifest(manifest)
    for function, handler in HANDLERS.items():
        runtime.register_op_type(caps[function].urn.to_string(), handler)
    runtime.run()


if __name__ == "__main__":
    main()
