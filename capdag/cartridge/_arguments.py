"""The argument streams of a request: which stream is which declared argument (protocol-spec/wire.md, Requests)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from capdag.errors import AttributionClass
from capdag.urn import MediaUrn, UrnError
from capdag.wire import REQUEST, InStream, Received

from ._errors import LONGEST_TEXT, CartridgeError
from ._feeds import FeedQueue
from ._inbound import InputCore, Streams
from ._selector import LIVE, LONGEST_SELECTOR, Bad, Selector, read_selector
from ._served import ArgFacts, ServedCap

MakeInput = Callable[[Streams, ArgFacts], InputCore]
OpenFeed = Callable[[MediaUrn, Selector, Bad], FeedQueue]


class _Selecting(NamedTuple):
    """A selector that is still coming, and the argument its feed will be."""

    found: InputCore
    media: MediaUrn
    data: bytearray


class Arguments(Streams):
    """All argument streams of one request: fed by the main thread, read by the handler."""

    direction = REQUEST

    def __init__(self, cap: ServedCap, make_input: MakeInput, open_feed: OpenFeed, *facts: Any) -> None:
        super().__init__(*facts)
        self._cap = cap
        self._open_feed = open_feed
        self._selectors: dict[str, _Selecting] = {}
        self._feeds: dict[str, FeedQueue] = {}
        self._inputs: Mapping[str, InputCore] = {arg.media_urn: make_input(self, arg) for arg in cap.args}

    def main(self) -> InputCore | None:
        """Return the input that the cap's in= names, or None for in=media:void."""
        return next((self._inputs[arg.media_urn] for arg in self._cap.args if arg.is_main), None)

    def named(self, media_urn: str) -> InputCore | None:
        """Return the input declared with this media URN, or None."""
        return self._inputs.get(str(MediaUrn.parse(media_urn)))

    def bad(self, media_urn: str, fault: str, detail: Mapping[str, object] | None = None) -> CartridgeError:
        """Return INVALID_REQUEST / input, naming the argument."""
        shown = media_urn[:LONGEST_TEXT]
        text = f"argument {shown!r} {fault}"
        return CartridgeError("INVALID_REQUEST", text, AttributionClass.INPUT, {"param": shown, **(detail or {})})

    def _choose(self, stream: InStream) -> InputCore | None:
        head = stream.head
        try:
            media = MediaUrn.parse(head.media_urn)
        except UrnError as error:
            raise self.bad(head.media_urn, f"is not a media URN: {error}") from None
        if head.output is not None:
            raise self.bad(head.media_urn, "names an output (key 21): only answers have outputs")
        found = self._input_of(media)
        if found is None and media.is_void:
            return None
        if found is None:
            raise self.bad(head.media_urn, f"is not one that {self._cap.text} takes: {list(self._inputs)}")
        if found._stream is not None or any(waiting.found is found for waiting in self._selectors.values()):
            raise self.bad(head.media_urn, "came twice")
        if LIVE in media.tags:
            self._selectors[head.stream_id] = _Selecting(found, media, bytearray())
            return None
        return found

    def _input_of(self, media: MediaUrn) -> InputCore | None:
        """Choose the argument a stream is: the same media, else one that it satisfies, else the main one, so that a
        caller may be vague about the only thing it sends."""
        args = self._cap.args
        same = (arg for arg in args if arg.media.is_equivalent(media))
        fitting = (arg for arg in args if media.satisfies(arg.media))
        found = next(same, None) or next(fitting, None)
        return self._inputs[found.media_urn] if found is not None else self.main()

    def _discard(self, stream: InStream, received: Received) -> int:
        """A selector, or a void stream: whoever sends anything sends one window and no more."""
        selecting = self._selectors.get(stream.head.stream_id)
        if selecting is not None:
            for value in received.values:
                if not isinstance(value, (bytes, str)):
                    raise self.bad(stream.head.media_urn, "has a selector that is neither bytes nor text")
                selecting.data.extend(value if isinstance(value, bytes) else value.encode())
            if len(selecting.data) > LONGEST_SELECTOR:
                raise self.bad(stream.head.media_urn, f"has a selector of over {LONGEST_SELECTOR} bytes")
        return 0

    def _on_stream_end(self, stream: InStream) -> None:
        head = stream.head
        selecting = self._selectors.pop(head.stream_id, None)
        if selecting is None:
            return

        def bad(fault: str, detail: Mapping[str, object] | None) -> CartridgeError:
            return self.bad(head.media_urn, fault, detail)

        selector = read_selector(bytes(selecting.data), bad)
        self._feeds[head.stream_id] = queue = self._open_feed(selecting.media, selector, bad)
        selecting.found._bind(stream)
        selecting.found._feed = queue

    def close_feeds(self, stream_id: str | None) -> None:
        """From the main thread: end the named feed, or all; what they have captured can still be read."""
        for name, queue in list(self._feeds.items()):
            if stream_id is None or stream_id == name:
                queue.close()

    def fail(self, error: BaseException) -> None:
        """End everything before its time, feeds too."""
        super().fail(error)
        self.close_feeds(None)
