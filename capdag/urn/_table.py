"""The cap table: who offers which cap, and who serves a request best."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Generic, TypeVar

from capdag.urn._cap import CapUrn, Effect
from capdag.urn._error import UrnError
from capdag.urn._forms import ABSENT, ABSENT_OR_NOT, EXACT, OPEN, form_of
from capdag.urn._tagged import CACHED_PARSES, CACHED_TEXT, MediaUrn

T = TypeVar("T", bound=Hashable)

_Posting = tuple[str, ...]
"""What a list of registrations has in common: an axis and, on it, nothing, a key that is set, or a stored tag."""


class Registration(Generic[T]):
    """One cap that one target offers, in one table: the handle to retire it with. Compared by identity."""

    __slots__ = ("_postings", "_rank", "cap", "target")

    def __init__(self, cap: CapUrn, target: T, serial: int) -> None:
        self.cap = cap
        self.target = target
        # Registrations sort by specificity, equal ones as registered.
        self._rank = (cap.specificity(), serial)
        self._postings: list[_Posting] = []

    def __repr__(self) -> str:
        return f"Registration({str(self.cap)!r}, {self.target!r})"


_Row = tuple[tuple[int, int], Registration[T]]


class CapTable(Generic[T]):
    """Registered caps, each with a target, and the choice among them (protocol-spec/urn.md, ranking).

    Of the caps that may serve a request the nearest one that is at least as specific wins, else the nearest less
    specific one; between equals the earliest registered. Targets must be hashable; equal targets are one.

    Each cap is filed under its tags, in lists kept in order of specificity. A look-up walks the shortest list that
    must hold every possible answer, outwards from the specificity of the request, and stops at the first that may
    serve. What it found is kept by request text until a registration changes.
    """

    def __init__(self) -> None:
        self._lists: dict[_Posting, list[_Row[T]]] = {}
        self._by_target: dict[T, dict[Registration[T], None]] = {}
        self._registered: dict[Registration[T], None] = {}
        self._serial = 0
        self._ranked: Callable[[str, str | None], _Ranking[T]] = lru_cache(CACHED_PARSES)(self._rank)

    def __len__(self) -> int:
        return len(self._registered)

    def __iter__(self) -> Iterator[Registration[T]]:
        return iter(tuple(self._registered))
