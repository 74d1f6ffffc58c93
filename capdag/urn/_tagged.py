"""Tagged URNs of any prefix, and media URNs, which say what bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Self

from capdag.urn._error import UrnError
from capdag.urn._forms import (
    ABSENT,
    ABSENT_OR_NOT,
    EXACT,
    MISSING_CLOSED,
    MISSING_OPEN,
    PRESENT,
    PRESENT_NOT,
    all_fit,
    all_meet,
    form_of,
)
from capdag.urn._text import check_keys, check_surrogates, checked_tags, position_of, render, scan

CACHED_PARSES = 4_096
"""Texts whose parsed value is kept, for media and for caps each."""
CACHED_TEXT = 1_024
"""Longest text, in characters, that is kept in a cache: what a stranger may send must not fill memory."""


class TaggedUrn:
    """A prefix and a set of tags. Immutable; equal when the canonical texts are.

    Between two URNs `a conforms_to b` reads: every tag of a fits b's. A key that one of them lacks counts as open.
    `satisfies` reads the left side as complete instead: a key that it lacks is unset. Comparing different prefixes
    raises `UrnError` of kind `prefix_mismatch`.
    """

    __slots__ = ("_prefix", "_tags", "_text")

    _prefix: str
    _tags: dict[str, str]
    _text: str

    def __init__(self, prefix: str, tags: Mapping[str, str]) -> None:
        """Build from a prefix and stored tag texts: `*` present, `v` exact, `!` absent, `?` open, `!=v`, `?=v`."""
        if not prefix:
            raise UrnError("empty_prefix", prefix, None, "give a prefix, as in media or cap")
        if ":" in prefix or prefix[0].isspace():
            raise UrnError("invalid_character", prefix, None, "a prefix has no colon and no leading white space")
        check_surrogates(prefix)
        self._fill(prefix.lower(), checked_tags(tags), None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URN text; raises `UrnError`."""
        return cls._read(text)

    @classmethod
    def _read(cls, text: str) -> Self:
        prefix, tags = scan(text)
        self = cls.__new__(cls)
        self._fill(prefix, tags, text)
        return self

    def _fill(self, prefix: str, tags: dict[str, str], text: str | None) -> None:
        """Take checked tags in key order; `text` is what was read, None when built."""
        if text is not None and not text.isascii():
            check_keys(tags, text)
        self._prefix = prefix
        self._tags = tags
        self._text = render(prefix, tags)

    @property
    def prefix(self) -> str:
        """The part before the colon, in lower case."""
        return self._prefix

    @property
    def tags(self) -> Mapping[str, str]:
        """Key to stored text, in key order."""
        return MappingProxyType(self._tags)

    def conforms_to(self, pattern: TaggedUrn) -> bool:
        """Tell whether whatever this URN may describe is also described by `pattern`."""
        self._check_prefix(pattern)
        return all_fit(self._tags, pattern._tags, MISSING_OPEN)

    def accepts(self, instance: TaggedUrn) -> bool:
        """Tell whether `instance` conforms to this URN."""
        return instance.conforms_to(self)

    def is_comparable(self, other: TaggedUrn) -> bool:
        """Tell whether one of the two conforms to the other. Not transitive."""
        return self.conforms_to(other) or other.conforms_to(self)

    def is_equivalent(self, other: TaggedUrn) -> bool:
        """Tell whether both describe the same things. Weaker than `==`: `media:?x` is equivalent to `media:`."""
        return self.conforms_to(other) and other.conforms_to(self)

    def satisfies(self, pattern: TaggedUrn) -> bool:
        """Tell whether this URN, read as a complete description, fits `pattern`."""
        self._check_prefix(pattern)
        return all_fit(self._tags, pattern._tags, MISSING_CLOSED)

    def meets(self, other: TaggedUrn) -> bool:
        """Tell whether something could be described by both. Symmetric, not transitive."""
        self._check_prefix(other)
        return all_meet(self._tags, other._tags, MISSING_OPEN)

    def specificity(self) -> int:
        """Return the sum of the scores of the tags' forms."""
        return sum(map(form_of, self._tags.values()))

    def form_counts(self) -> tuple[int, int, int, int, int]:
        """Count the tags that are absent, exact, present-not, present and absent-or-not."""
        count = [form_of(stored) for stored in self._tags.values()].count
        return count(ABSENT), count(EXACT), count(PRESENT_NOT), count(PRESENT), count(ABSENT_OR_NOT)

    def _check_prefix(self, other: TaggedUrn) -> None:
        if self._prefix != other._prefix:
            remedy = f"only a {self._prefix}: URN can be compared with {self._text!r}"
            raise UrnError("prefix_mismatch", other._text, 0, remedy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaggedUrn) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({self._text!r})"


class MediaUrn(TaggedUrn):
    """A tagged URN with the prefix `media`. `media:` describes everything, `media:void` nothing at all."""

    __slots__ = ("_unconstrained",)

    _unconstrained: bool

    def __init__(self, tags: Mapping[str, str]) -> None:
        """Build from stored tag texts, as `TaggedUrn` does."""
        super().__init__("media", tags)

    @classmethod
    def parse(cls, text: str) -> MediaUrn:
        """Read a media URN; raises `UrnError`. Short texts are read once and their value is shared."""
        return _parse_cached(text) if len(text) <= CACHED_TEXT else cls._read(text)

    def _fill(self, prefix: str, tags: dict[str, str], text: str | None) -> None:
        super()._fill(prefix, tags, text)
        seen = text or self._text
        if prefix != "media":
            raise UrnError("wrong_prefix", seen, 0, "a media URN starts with media:")
        if "void" in tags and len(tags) > 1:
            raise UrnError("void_not_atomic", seen, position_of(seen, "void"), "drop void or the other tags")
        self._unconstrained = all(stored == "?" for stored in tags.values())

    @property
    def is_top(self) -> bool:
        """True for `media:` alone, which has no tags."""
        return not self._tags

    @property
    def is_void(self) -> bool:
        """True when the key `void` is there, in whatever form."""
        return "void" in self._tags

    @property
    def is_unconstrained(self) -> bool:
        """True when every tag is open, so that nothing is asked; true of `media:`."""
        return self._unconstrained


@lru_cache(CACHED_PARSES)
def _parse_cached(text: str) -> MediaUrn:
    return MediaUrn._read(text)
