"""One cap as the runtime serves it: what its handler is and what the manifest says goes in and out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from capdag.errors import LocalProtocolError
from capdag.urn import CapUrn, MediaUrn, response_media

if TYPE_CHECKING:
    from ._async_request import AsyncRequest
    from ._request import Request

    ThreadHandler = Callable[[Request], None]
    AsyncHandler = Callable[[AsyncRequest], Coroutine[Any, Any, None]]

Handler = Union["ThreadHandler", "AsyncHandler"]
"""A plain function of a `Request`, or an `async def` of an `AsyncRequest`."""


class ArgFacts(NamedTuple):
    """One declared argument. `media` is what its stream must satisfy: the stdin URN if there is one."""

    media_urn: str
    media: MediaUrn
    is_main: bool
    is_required: bool


class OutputFacts(NamedTuple):
    """One declared output; `stream_media` is what its STREAM_START says."""

    media_urn: str
    stream_media: str
    is_main: bool
    is_required: bool
    is_sequence: bool


class ServedCap(NamedTuple):
    """A cap with its handler. `facts` is its object in the manifest, `text` its canonical URN and pool name."""

    urn: CapUrn
    text: str
    facts: Mapping[str, Any]
    handler: Handler
    args: tuple[ArgFacts, ...]
    outputs: tuple[OutputFacts, ...]
    is_async: bool


def serve(facts: Mapping[str, Any], handler: Handler, *, is_async: bool = False) -> ServedCap:
    """Read a checked cap object of the manifest."""
    urn = CapUrn.parse(facts["urn"])
    args = tuple(_arg(urn, arg) for arg in facts.get("args", ()))
    outputs = tuple(_output(urn, output) for output in facts.get("outputs", ()))
    return ServedCap(urn, str(urn), facts, handler, args, outputs, is_async)


def check_returned(handler: object, returned: object) -> None:
    """Refuse what a handler returned: it would be lost, and the answer be empty. Raises LocalProtocolError."""
    if returned is None:
        return
    name = getattr(handler, "__qualname__", handler)
    if hasattr(returned, "__await__"):
        raise LocalProtocolError(f"handler {name} returned an awaitable: write it as `async def`")
    kind = type(returned).__name__
    raise LocalProtocolError(f"handler {name} returned a {kind}: nobody gets that, answer with request.output.write()")


def _arg(urn: CapUrn, arg: Mapping[str, Any]) -> ArgFacts:
    stdin = next((source["stdin"] for source in arg["sources"] if "stdin" in source), None)
    media = MediaUrn.parse(stdin or arg["media_urn"])
    is_main = stdin is not None and media.is_equivalent(urn.in_media)
    return ArgFacts(arg["media_urn"], media, is_main, arg["required"])


def _output(urn: CapUrn, output: Mapping[str, Any]) -> OutputFacts:
    media = MediaUrn.parse(output["media_urn"])
    is_main = media.is_equivalent(urn.out_media)
    carried = urn.in_media if output.get("carries") == "input" else media
    return OutputFacts(
        output["media_urn"],
        str(response_media(urn) if is_main else carried),
        is_main,
        not output.get("optional", False),
        output.get("is_sequence", False),
    )
