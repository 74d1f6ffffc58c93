"""Cap URNs: what a cartridge can do, or what a request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from capdag.urn._error import UrnError
from capdag.urn._forms import MISSING_CLOSED, MISSING_OPEN, all_fit, all_meet, form_of
from capdag.urn._tagged import CACHED_PARSES, CACHED_TEXT, MediaUrn
from capdag.urn._text import checked_tags, joined, position_of, public_text, scan, segment, unreadable_key

_RESERVED = ("in", "out", "effect")


class Effect(StrEnum):
    """How the media of an answer follows from the cap (protocol-spec/urn.md)."""

    DECLARED = "declared"
    """The answer is what `out` says."""
    NONE = "none"
    """The answer is the input, unchanged in kind; `in` must conform to `out`."""
    PATCH = "patch"
    """The answer is the input with the difference from `in` to `out` applied."""
    OPEN = "open"
    """Written `?effect`. In a request: whatever the effect is."""


class CapKind(StrEnum):
    """What a cap does with media, at a glance. Dispatch does not look at it."""

    IDENTITY = "identity"
    EFFECT = "effect"
    SOURCE = "source"
    SINK = "sink"
    TRANSFORM = "transform"


class Grade(StrEnum):
    """How well a candidate answers a request."""

    EXACT = "exact"
    GUARANTEED = "guaranteed"
    POSSIBLE = "possible"
    NONE = "none"


_EFFECTS = {
    "declared": Effect.DECLARED,
    "none": Effect.NONE,
    "patch": Effect.PATCH,
    "?": Effect.OPEN,
    "*": Effect.OPEN,
}
_STORED_EFFECTS = {Effect.NONE: "none", Effect.PATCH: "patch", Effect.OPEN: "?"}


class CapUrn:
    """Four coordinates: the media taken, the media given, the effect, and all other tags. Immutable and hashable.

    Equal when the canonical texts are. Routing asks `candidate.is_dispatchable(request)` and nothing else.
    """

    __slots__ = ("_effect", "_in", "_out", "_tags", "_text")

    _in: MediaUrn
    _out: MediaUrn
    _effect: Effect
    _tags: dict[str, str]
    _text: str

    def __init__(
        self,
        in_media: MediaUrn,
        out_media: MediaUrn,
        *,
        effect: Effect = Effect.DECLARED,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Build from the coordinates; `tags` are stored tag texts, as `TaggedUrn` takes them. Raises `UrnError`."""
        checked = checked_tags(tags or {})
        for key in _RESERVED:
            if key in checked:
                raise UrnError("reserved_key", key, None, f"give {key!r} as its own argument, not as a tag")
        self._fill(in_media, out_media, effect, checked, None)

    @classmethod
    def parse(cls, text: str) -> CapUrn:
        """Read a cap URN; raises `UrnError`. Short texts are read once and their value is shared."""
        return _parse_cached(text) if len(text) <= CACHED_TEXT else _parse_cap(text)

    def _fill(
        self, in_media: MediaUrn, out_media: MediaUrn, effect: Effect, tags: dict[str, str], text: str | None
    ) -> None:
        """Take checked tags in key order; `text` is what was read, None when built."""
        self._in = _settled("in", in_media, text)
        self._out = _settled("out", out_media, text)
        self._effect = effect
        self._tags = tags
        segments = [(key, segment(key, stored)) for key, stored in tags.items()]
        if not (text or "").isascii() or any('"' in written for _, written in segments):
            _check_readable(tags, text)
        for key, media in (("in", self._in), ("out", self._out)):
            if not media.is_top:
                segments.append((key, segment(key, str(media))))
        if effect is not Effect.DECLARED:
            segments.append(("effect", segment("effect", _STORED_EFFECTS[effect])))
        segments.sort()
        self._text = joined("cap", [written for _, written in segments])
        self._check_effect(text or self._text)

    def _check_effect(self, text: str) -> None:
        if self._effect is Effect.DECLARED and self._in.is_top and self._out.is_top and not self._tags:
            raise UrnError("bare_top", text, None, "say what the cap does: add a tag, in, out, or effect=none")
        if self._effect is Effect.NONE and not self._in.conforms_to(self._out):
            raise UrnError(
                "none_incoherent", text, None, f"with effect=none the input {self._in} must conform to {self._out}"
            )

    @property
    def in_media(self) -> MediaUrn:
        """What the cap takes; `media:` when it does not say."""
        return self._in

    @property
    def out_media(self) -> MediaUrn:
        """What the cap gives; `media:` when it does not say."""
        return self._out

    @property
    def effect(self) -> Effect:
        """How the answer's media follows from the cap."""
        return self._effect

    @property
    def tags(self) -> Mapping[str, str]:
        """All tags but in, out and effect: key to stored text, in key order."""
        return MappingProxyType(self._tags)

    @property
    def kind(self) -> CapKind:
        """The first kind that applies, in the order of `CapKind`."""
        if self._effect is Effect.NONE and self._in.is_top and self._out.is_top and not self._tags:
            return CapKind.IDENTITY
        if self._in.is_void:
            return CapKind.EFFECT if self._out.is_void else CapKind.SOURCE
        return CapKind.SINK if self._out.is_void else CapKind.TRANSFORM

    def specificity(self) -> int:
        """Return 10,000 × out + 100 × in + other tags. The effect is not scored."""
        own = sum(map(form_of, self._tags.values()))
        return 10_000 * self._out.specificity() + 100 * self._in.specificity() + own

    def is_dispatchable(self, request: CapUrn) -> bool:
        """Tell whether this cap, as a candidate, may serve `request`. Reflexive; neither symmetric nor transitive."""
        return (
            request._admits_effect(self)
            and all_fit(self._tags, request._tags, MISSING_CLOSED)
            and (request._in.is_unconstrained or request._in.conforms_to(self._in))
            and self._out.conforms_to(request._out)
        )

    def may_dispatch(self, request: CapUrn) -> bool:
        """Tell whether this cap could serve some request that `request` describes: overlap in place of fit."""
        return (
            request._admits_effect(self)
            and all_meet(self._tags, request._tags, MISSING_CLOSED)
            and (request._in.is_unconstrained or request._in.meets(self._in))
            and self._out.meets(request._out)
        )

    def grade(self, request: CapUrn) -> Grade:
        """Grade this cap, as a candidate, for `request`. Exactness does not look at the other tags."""
        if not self.is_dispatchable(request):
            return Grade.POSSIBLE if self.may_dispatch(request) else Grade.NONE
        same_in = request._in.is_unconstrained or self._in.is_equivalent(request._in)
        return Grade.EXACT if same_in and self._out.is_equivalent(request._out) else Grade.GUARANTEED

    def accepts(self, instance: CapUrn) -> bool:
        """Tell whether `instance` is within this cap, read as a pattern. Not used for routing."""
        return (
            self._admits_effect(instance)
            and instance._in.conforms_to(self._in)
            and (self._out.is_unconstrained or self._out.conforms_to(instance._out))
            and all_fit(instance._tags, self._tags, MISSING_CLOSED)
        )

    def conforms_to(self, pattern: CapUrn) -> bool:
        """Tell whether this cap is within `pattern`."""
        return pattern.accepts(self)

    def is_comparable(self, other: CapUrn) -> bool:
        """Tell whether one of the two can stand for the other."""
        return self._stands_for(other) or other._stands_for(self)

    def is_equivalent(self, other: CapUrn) -> bool:
        """Tell whether each of the two can stand for the other."""
        return self._stands_for(other) and other._stands_for(self)

    def flows_into(self, following: CapUrn) -> bool:
        """Tell whether what this cap gives is what `following` takes."""
        return self._out.conforms_to(following._in)

    def _stands_for(self, other: CapUrn) -> bool:
        return (
            self._admits_effect(other)
            and other._in.conforms_to(self._in)
            and self._out.conforms_to(other._out)
            and all_fit(other._tags, self._tags, MISSING_OPEN)
        )

    def _admits_effect(self, other: CapUrn) -> bool:
        return self._effect is Effect.OPEN or self._effect is other._effect

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CapUrn) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"CapUrn.parse({self._text!r})"


def _parse_cap(text: str) -> CapUrn:
    prefix, tags = scan(text)
    if prefix != "cap":
        raise UrnError("wrong_prefix", text, 0, "a cap URN starts with cap:")
    in_media = _read_media(text, "in", tags.pop("in", "*"))
    out_media = _read_media(text, "out", tags.pop("out", "*"))
    written = tags.pop("effect", "declared")
    effect = _EFFECTS.get(written)
    if effect is None:
        remedy = "the effect is declared, none or patch in lower case, or ?effect"
        raise UrnError("bad_effect", text, position_of(text, "effect"), remedy)
    cap = CapUrn.__new__(CapUrn)
    cap._fill(in_media, out_media, effect, tags, text)
    return cap


@lru_cache(CACHED_PARSES)
def _parse_cached(text: str) -> CapUrn:
    return _parse_cap(text)


def _read_media(text: str, key: str, stored: str) -> MediaUrn:
    if stored == "*":
        return _TOP
    try:
        return MediaUrn.parse(stored)
    except UrnError as error:
        raise _bad_media(key, text, error) from error


def _settled(key: str, media: MediaUrn, text: str | None) -> MediaUrn:
    """Return the media that a peer reads back from what the public package writes for it, or raise `UrnError`."""
    if '"' not in str(media):
        return media
    try:
        return MediaUrn.parse(public_text("media", media.tags))
    except UrnError as error:
        raise _bad_media(key, text, error) from error


def _bad_media(key: str, text: str | None, cause: UrnError) -> UrnError:
    remedy = f'{key} must be a media URN, as in {key}="media:…": {cause}'
    if text is None:
        return UrnError(f"bad_{key}", cause.text, None, remedy)
    return UrnError(f"bad_{key}", text, position_of(text, key), remedy)


def _check_readable(tags: dict[str, str], text: str | None) -> None:
    """Refuse tags that a peer could not read back from what the public package writes for them."""
    public = public_text("cap", tags)
    try:
        scan(public)
    except UrnError as error:
        key = unreadable_key(tags) or ""
        remedy = f"in a cap, give {key!r} a value of letters, digits and _ - / : . * ? !: peers write it without quotes"
        at = None if text is None else position_of(text, key)
        raise UrnError("tags_not_serialisable", text or public, at, remedy) from error


_TOP = MediaUrn({})
