"""All outputs of one request, of either kind of handler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from capdag.errors import CapdagError, LocalProtocolError
from capdag.urn import MediaUrn

from ._outbound import Head, head_of
from ._output import Output
from ._served import OutputFacts, ServedCap

if TYPE_CHECKING:
    from ._async_output import AsyncOutput

AnyOutput = TypeVar("AnyOutput", "Output", "AsyncOutput")


class Outputs(Generic[AnyOutput]):
    """The main output, if the cap has one, and the named ones."""

    def __init__(self, cap: ServedCap, make: Callable[[Head], AnyOutput]) -> None:
        self._cap = cap
        salt = os.urandom(4).hex()
        self._by_stream: dict[str, AnyOutput] = {}
        self._by_media: dict[str, AnyOutput] = {}
        self.main: AnyOutput | None = None
        for number, facts in enumerate(cap.outputs):
            stream_id = f"resp-{salt}-{number}"
            output = make(head_of(facts, stream_id))
            self._by_stream[stream_id] = self._by_media[facts.media_urn] = output
            if facts.is_main:
                self.main = output

    def named(self, media_urn: str) -> AnyOutput:
        """Return the output the manifest declares with this media URN. Raises LocalProtocolError."""
        output = self._by_media.get(str(MediaUrn.parse(media_urn)))
        if output is None:
            raise LocalProtocolError(
                f"cap {self._cap.text!r} declares no output {media_urn!r}, only {list(self._by_media)}"
            )
        return output

    def declared(self) -> list[tuple[OutputFacts, AnyOutput]]:
        """Return every output with what the manifest says of it, in the order of declaration."""
        return [(facts, self._by_media[facts.media_urn]) for facts in self._cap.outputs]

    def grant(self, stream_id: str | None, credit: int) -> bool:
        """Take a grant. One that names no stream counts if exactly one is open. False if it is for none."""
        if stream_id is None:
            named = [output for output in self._by_stream.values() if output.is_open]
        else:
            named = [output for output in (self._by_stream.get(stream_id),) if output is not None]
        if len(named) != 1:
            return False
        named[0]._gate.grant(credit)
        return True

    def flush_within_credit(self) -> None:
        """Send what every output holds back, as far as that needs no waiting."""
        for output in self._by_stream.values():
            output.flush_within_credit()

    def close(self, error: CapdagError) -> None:
        """Fail whoever writes or waits for credit."""
        for output in self._by_stream.values():
            output._gate.close(error)
