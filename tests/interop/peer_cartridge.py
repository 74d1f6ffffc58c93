"""A cartridge built on the public `capdag` package. Runs in that package's own environment, never in ours."""

from __future__ import annotations

from typing import Any

from capdag.bifaci.cartridge_runtime import WET_KEY_REQUEST, CartridgeRuntime  # type: ignore[import-not-found]
from capdag.bifaci.frame import AttributionClass  # type: ignore[import-not-found]
from capdag.bifaci.manifest import CapManifest, default_group  # type: ignore[import-not-found]
from capdag.cap.definition import Cap, CapArg, CapOutput, StdinSource  # type: ignore[import-not-found]
from capdag.standard.caps import identity_cap  # type: ignore[import-not-found]
from capdag.urn.cap_urn import CapUrnBuilder  # type: ignore[import-not-found]
from ops import DryContext, Op, OpMetadata, WetContext  # type: ignore[import-not-found]

OCTETS = "media:octets"


class Handler(Op):  # type: ignore[misc]
    """An op that is named after its class and hands its request to `answer`."""

    async def perform(self, _dry: DryContext, wet: WetContext) -> None:
        self.answer(wet.get_required(WET_KEY_REQUEST))

    def answer(self, request: Any) -> None:
        raise NotImplementedError

    def metadata(self) -> OpMetadata:
        return OpMetadata.builder(type(self).__name__).description(type(self).__name__).build()


class Echo(Handler):
    def answer(self, request: Any) -> None:
        data = request.take_input().collect_all_bytes()
        emitter = request.emitter()
        emitter.start(False)
        emitter.emit_cbor(data)


class Items(Handler):
    def answer(self, request: Any) -> None:
        count = int(request.take_input().collect_all_bytes())
        emitter = request.emitter()
        emitter.start(True)
        for number in range(count):
            emitter.progress(number / count, f"item {number}")
            emitter.emit_list_item({"number": number})


class Fail(Handler):
    def answer(self, request: Any) -> None:
        request.take_input().collect_all_bytes()
        request.emitter().emit_log("warn", AttributionClass.INPUT, "about to fail")
        raise ValueError("this handler always fails")


def cap(name: str, is_sequence: bool) -> Cap:
    urn = CapUrnBuilder().marker(name).in_spec(OCTETS).out_spec(OCTETS).build()
    made = Cap(urn, name, [name])
    made.args = [CapArg(media_urn=OCTETS, name="input", required=True, sources=[StdinSource(OCTETS)])]
    made.add_output(
        CapOutput(media_urn=OCTETS, name="output", output_description="the answer", is_sequence=is_sequence)
    )
    return made


def main() -> None:
    handlers = {"peer-echo": Echo, "peer-items": Items, "peer-fail": Fail}
    caps = [cap(name, name == "peer-items") for name in handlers]
    manifest = CapManifest(
        name="peer", version="1.0.0", channel="release", registry_url=None, description="the public package",
        cap_groups=[default_group([identity_cap(), *caps])],
    )  # fmt: skip
    runtime = CartridgeRuntime.with_manifest(manifest)
    for made, handler in zip(caps, handlers.values(), strict=True):
        runtime.register_op_type(made.urn.to_string(), handler)
    runtime.run()


if __name__ == "__main__":
    main()
