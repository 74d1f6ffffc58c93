"""The SDK that a cartridge author imports: caps, handlers, streams, calls.

    from capdag.cartridge import Cartridge, Request

    cartridge = Cartridge("shout", version="0.1.0", description="Says it louder")

    @cartridge.cap("cap:in=media:text;out=media:text;shout", title="Shout", aliases=["shout"])
    def shout(request: Request) -> None:
        for text in request.main_input():
            request.output.write(text.upper())

    if __name__ == "__main__":
        cartridge.run()

A handler is a plain function of a `Request`, which runs in a thread of its own and may block, or an `async def` of an
`AsyncRequest`, which runs as a task under trio. They have the same methods, with `await` where something may wait:

    @cartridge.cap("cap:in=media:text;out=media:text;twice", title="Twice", aliases=["twice"])
    async def twice(request: AsyncRequest) -> None:
        async with request.call("cap:in=media:text;out=media:text;shout", Argument(TEXT, request.main_input())) as call:
            async for text in call:
                await request.output.write(text * 2)

trio is imported by a cartridge that has an async handler, after HELLO has been answered, and by no other; msgspec when
a handler first asks for a type.

- Inputs: `request.main_input()` and `request.input(media_urn)`; whole as bytes, `text()` or `json(Type)`, or piece by
  piece, with the meta of items by `items()`, checked by `each(Type)`.
- Outputs: `request.output` and `request.named_output(media_urn)`; `write` for scalars, `item` for sequences,
  `open(unbounded=True)` for what has no end.
- On the way: `progress`, `log`, `keep_alive` while something blocks; `cancelled` and `check_cancelled` in a plain
  handler, `trio.Cancelled` in an async one.
- Failures: `CartridgeError` reaches the caller with its code, class and detail; so does the failure of a call.
- Limits: `capacity` of a cap, of the cartridge and of pools (`Cartridge.add_pool`); what has no room waits in order,
  and its caller is told. A host may change them while the cartridge runs.
- Live feeds: `Cartridge.feed` registers what opens one; a handler reads it as an input without end.
- The network: `Cartridge.policy` and `Cartridge.require_network`.

Start it with `python -m capdag.cartridge MODULE`: stdin and stdout are then moved out of the way before MODULE, and
whatever engine it imports, can print to them. Import engines inside handlers: the host waits for HELLO, not for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._cartridge import Cartridge
from ._errors import CartridgeError, RequestCancelledError
from ._request import Request
from ._selector import FeedItem, Selector

if TYPE_CHECKING:
    from ._argument import Argument
    from ._async_call import AsyncCall
    from ._async_input import AsyncInput
    from ._async_output import AsyncOutput
    from ._async_request import AsyncRequest
    from ._call import Call
    from ._inbound import Item
    from ._input import Input
    from ._output import Output

__all__ = [
    "Argument",
    "AsyncCall",
    "AsyncInput",
    "AsyncOutput",
    "AsyncRequest",
    "Call",
    "Cartridge",
    "CartridgeError",
    "FeedItem",
    "Input",
    "Item",
    "Output",
    "Request",
    "RequestCancelledError",
    "Selector",
]

_LATER = {
    "Argument": "_argument",
    "AsyncCall": "_async_call",
    "AsyncInput": "_async_input",
    "AsyncOutput": "_async_output",
    "AsyncRequest": "_async_request",
    "Call": "_call",
    "Input": "_input",
    "Item": "_inbound",
    "Output": "_output",
}
"""What a cold start does not pay for before HELLO unless it is named."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name]}", __name__), name)
