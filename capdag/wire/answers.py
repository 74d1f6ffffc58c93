"""What the streams of an answer are held to at its requester (protocol-spec/wire.md, Requests)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from capdag.urn import CapUrn, Effect, MediaUrn, UrnError

from .frame import show_value
from .streams import BrokenStreamError, StreamHead, StreamRule


class _Declared(NamedTuple):
    """An output of the manifest."""

    is_sequence: bool
    is_optional: bool


class AnswerRules:
    """Judges the streams of one answer.

    `cap` is the cap that serves the request or, where only that is known, the one that was asked for. `facts` is the
    serving cap's object of the manifest: without it, or without outputs there that can be read, nobody knows which
    outputs there are, nor whether one is a list.
    """

    def __init__(self, cap: CapUrn, facts: Mapping[str, Any] | None = None) -> None:
        self._cap = cap
        self._declared = None if facts is None else _read_outputs(cap, facts.get("outputs"))
        self._begun: set[MediaUrn | None] = set()

    def start(self, head: StreamHead) -> None:
        """Take the head of a stream. Raises RemoteProtocolError for one that is no output of the cap."""
        name, media = show_value(head.stream_id), _media(head, "media_urn", head.media_urn)
        output = None if head.output is None else _media(head, "output", head.output)
        if output in self._begun:
            raise _broken(f"stream {name} is the second of {_called(output)}")
        if output is None:
            self._check_main(name, media)
        self._begun.add(output)
        if self._declared is None:
            return
        declared = self._declared.get(output)
        if declared is None:
            raise _broken(f"stream {name} is {_called(output)}, which the manifest does not declare for {self._cap}")
        if declared.is_sequence is not head.is_sequence:
            raise _broken(f"stream {name} has is_sequence {head.is_sequence}, which the manifest denies")

    def _check_main(self, name: str, media: MediaUrn) -> None:
        if self._cap.effect is not Effect.DECLARED:
            return
        if self._cap.out_media.is_void or not media.satisfies(self._cap.out_media):
            raise _broken(f"stream {name} has media {show_value(str(media))} where {self._cap.out_media} was due")

    def end(self) -> None:
        """Take an END that says success. Raises RemoteProtocolError if an output that must come has not."""
        for output, declared in (self._declared or {}).items():
            if not declared.is_optional and output not in self._begun:
                raise _broken(f"the answer ended without {_called(output)}, which the manifest declares")


def _read_outputs(cap: CapUrn, outputs: object) -> dict[MediaUrn | None, _Declared] | None:
    """Return the outputs by the media that names them, the main one under None; None if they cannot be read."""
    declared: dict[MediaUrn | None, _Declared] = {}
    try:
        for output in outputs if isinstance(outputs, list) else ():
            media = MediaUrn.parse(output["media_urn"])
            place = None if media.is_equivalent(cap.out_media) else media
            declared[place] = _Declared(output.get("is_sequence") is True, output.get("optional") is True)
    except (UrnError, LookupError, TypeError, AttributeError):  # a foreign host's notice may hold anything
        return None
    return declared if cap.out_media.is_void or None in declared else None


def _media(head: StreamHead, field: str, text: str) -> MediaUrn:
    try:
        return MediaUrn.parse(text)
    except UrnError as error:
        raise _broken(f"stream {show_value(head.stream_id)}: {field} is no media URN: {error}") from None


def _called(output: MediaUrn | None) -> str:
    return "the main output" if output is None else f"output {show_value(str(output))}"


def _broken(what: str) -> BrokenStreamError:
    return BrokenStreamError(StreamRule.OUTPUT, what)
