"""The cap table: who offers which cap, and who serves a request best."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

from capdag.urn._cap import CapUrn, Effect
from capdag.urn._error import UrnError
from capdag.urn._forms import ABSENT, EXACT, PRESENT, PRESENT_NOT, form_of
from capdag.urn._tagged import CACHED_PARSES, CACHED_TEXT, MediaUrn

T = TypeVar("T", bound=Hashable)

_Posting = tuple[str, ...]
"""What the registrations of one list have in common: an axis, then a key on it, then the key's stored text."""

_EVERY: _Posting = ("every",)
_ANY_INPUT: _Posting = ("in",)


class Registration(Generic[T]):
    """One cap that one target offers in one table: the handle to retire it with. Compared by identity."""

    __slots__ = ("_postings", "_rank", "cap", "target")

    def __init__(self, cap: CapUrn, target: T, serial: int) -> None:
        self.cap = cap
        self.target = target
        self._rank = (cap.specificity(), serial)
        self._postings: list[_Posting] = []

    def __repr__(self) -> str:
        return f"Registration({str(self.cap)!r}, {self.target!r})"


_rank_of: Callable[[Registration[T]], tuple[int, int]] = attrgetter("_rank")


class _Ranking(Generic[T]):
    """Registrations in the order of choice, found only as far as somebody has asked."""

    __slots__ = ("_found", "_rest")

    def __init__(self, rest: Iterator[Registration[T]]) -> None:
        self._found: list[Registration[T]] = []
        self._rest = rest

    def __iter__(self) -> Iterator[Registration[T]]:
        # By position, not `yield from`: a look-up made meanwhile may have found more.
        position = 0
        while position < len(self._found) or self._find():
            yield self._found[position]
            position += 1

    def _find(self) -> bool:
        for registration in self._rest:
            self._found.append(registration)
            return True
        return False


class CapTable(Generic[T]):
    """Registered caps, each with a target, and the choice among them (protocol-spec/urn.md, ranking).

    Of the caps that may serve a request the nearest that is at least as specific wins, else the nearest less specific
    one; between equals the earliest registered. Targets must be hashable; equal targets count as one.

    Each cap is filed under its tags, in lists ordered by specificity. A look-up walks the shortest list that must
    hold every possible answer, outwards from the specificity of the request, and stops at the first that may serve.
    What it found is kept until a registration changes.
    """

    def __init__(self) -> None:
        self._lists: dict[_Posting, list[Registration[T]]] = {}
        self._by_target: dict[T, dict[Registration[T], None]] = {}
        self._registered: dict[Registration[T], None] = {}
        self._serial = 0
        self._ranking = lru_cache(CACHED_PARSES)(self._rank)

    def __len__(self) -> int:
        return len(self._registered)

    def __iter__(self) -> Iterator[Registration[T]]:
        """Iterate over a snapshot, in the order registered."""
        return iter(tuple(self._registered))

    def register(self, cap: CapUrn, target: T) -> Registration[T]:
        """Add a cap that `target` offers. The same pair may be there many times, each with its own handle."""
        registration = Registration(cap, target, self._serial)
        self._serial += 1
        registration._postings = [*_postings(cap), self._input_posting(cap.in_media)]
        for posting in registration._postings:
            insort(self._lists.setdefault(posting, []), registration, key=_rank_of)
        self._registered[registration] = None
        self._by_target.setdefault(target, {})[registration] = None
        self._ranking.cache_clear()
        return registration

    def retire(self, registration: Registration[T]) -> None:
        """Take a registration out. One that is not there (any more) is left alone."""
        if registration not in self._registered:
            return
        del self._registered[registration]
        for posting in registration._postings:
            rows = self._lists[posting]
            del rows[bisect_left(rows, registration._rank, key=_rank_of)]
            if not rows:
                del self._lists[posting]
        offered = self._by_target[registration.target]
        del offered[registration]
        if not offered:
            del self._by_target[registration.target]
        self._ranking.cache_clear()

    def retire_target(self, target: T) -> None:
        """Take out everything that `target` offers."""
        for registration in tuple(self._by_target.get(target, ())):
            self.retire(registration)

    def best_match(
        self, request: CapUrn | str, preferred: str | None = None, usable: Callable[[T], bool] | None = None
    ) -> T | None:
        """Return the target that serves `request` best, or None; a text that is no cap URN has no target.

        A cap that may serve and whose in, out and tags are those of the cap `preferred` wins whatever its rank; a
        hint that is no cap URN, or that nothing matches, is ignored. `usable` is asked about targets from the best
        one down until it says yes; it must not change the table.
        """
        wanted = _cap_or_none(request)
        if wanted is None:
            return None
        hint = _cap_or_none(preferred)
        for registration in self._ranked(wanted, hint):
            if usable is None or usable(registration.target):
                return registration.target
        return None

    def _ranked(self, request: CapUrn, hint: CapUrn | None) -> _Ranking[T]:
        if len(str(request)) > CACHED_TEXT or (hint is not None and len(str(hint)) > CACHED_TEXT):
            return self._rank(request, hint)
        return self._ranking(request, hint)

    def _rank(self, request: CapUrn, hint: CapUrn | None) -> _Ranking[T]:
        rows = self._candidates(request)
        outwards = _outwards(rows, request.specificity())
        ordered = outwards if hint is None else chain(_same_as(hint, rows), outwards)
        return _Ranking(row for row in ordered if row.cap.is_dispatchable(request))

    def _candidates(self, request: CapUrn) -> Sequence[Registration[T]]:
        """Return a short list, ordered by rank, that holds every registration which may serve `request`."""
        shortest: list[Registration[T]] | None = None
        for posting in _required(request):
            rows = self._lists.get(posting)
            if rows is None:
                return ()
            if shortest is None or len(rows) < len(shortest):
                shortest = rows
        assert shortest is not None
        if request.in_media.is_unconstrained:
            return shortest
        taking = [self._lists.get(posting, []) for posting in _input_postings(request.in_media)]
        if sum(map(len, taking)) < len(shortest):
            return sorted(chain.from_iterable(taking), key=_rank_of)
        return shortest

    def _input_posting(self, media: MediaUrn) -> _Posting:
        """Choose the one constraint on the input under which to file a cap: the rarest so far."""
        options = [
            ("in", key, stored) if form_of(stored) in (EXACT, ABSENT) else ("in", key)
            for key, stored in media.tags.items()
            if stored != "?"
        ]
        return min(options, key=lambda posting: len(self._lists.get(posting, ())), default=_ANY_INPUT)


def _postings(cap: CapUrn) -> Iterator[_Posting]:
    """Yield the lists in which a cap stands by everything but its input."""
    yield _EVERY
    yield ("effect", cap.effect)
    for axis, tags in (("tag", cap.tags), ("out", cap.out_media.tags)):
        for key, stored in tags.items():
            form = form_of(stored)
            if form in (PRESENT, PRESENT_NOT, EXACT):
                yield (axis, key)
            if form in (EXACT, ABSENT):
                yield (axis, key, stored)


def _required(request: CapUrn) -> Iterator[_Posting]:
    """Yield lists in each of which every cap that may serve `request` stands, going by what only such a cap has."""
    yield _EVERY
    if request.effect is not Effect.OPEN:
        yield ("effect", request.effect)
    for axis, tags in (("tag", request.tags), ("out", request.out_media.tags)):
        for key, stored in tags.items():
            form = form_of(stored)
            if form == EXACT or (form == ABSENT and axis == "out"):
                yield (axis, key, stored)
            elif form in (PRESENT, PRESENT_NOT):
                yield (axis, key)


def _input_postings(media: MediaUrn) -> Iterator[_Posting]:
    """Yield the lists that together hold every cap which may take `media`."""
    yield _ANY_INPUT
    for key, stored in media.tags.items():
        yield ("in", key)
        yield ("in", key, stored)


def _outwards(rows: Sequence[Registration[T]], specificity: int) -> Iterator[Registration[T]]:
    """Yield those as specific or more, nearest first, then the less specific, nearest first."""
    middle = bisect_left(rows, (specificity, 0), key=_rank_of)
    # No slices: a copy would touch every row, and the first is mostly all that is asked for.
    yield from map(rows.__getitem__, range(middle, len(rows)))
    while middle:
        start = bisect_left(rows, (rows[middle - 1]._rank[0], 0), key=_rank_of)
        yield from map(rows.__getitem__, range(start, middle))
        middle = start


def _same_as(hint: CapUrn, rows: Sequence[Registration[T]]) -> Iterator[Registration[T]]:
    """Yield those whose in, out and tags are the hint's. The effect is not compared."""
    specificity = hint.specificity()
    start = bisect_left(rows, (specificity, 0), key=_rank_of)
    end = bisect_left(rows, (specificity + 1, 0), key=_rank_of)
    for row in rows[start:end]:
        cap = row.cap
        if cap.in_media == hint.in_media and cap.out_media == hint.out_media and cap.tags == hint.tags:
            yield row


def _cap_or_none(cap: CapUrn | str | None) -> CapUrn | None:
    if cap is None or isinstance(cap, CapUrn):
        return cap
    try:
        return CapUrn.parse(cap)
    except UrnError:
        return None


def best_match(candidates: Iterable[CapUrn | str], request: CapUrn | str, preferred: str | None = None) -> int | None:
    """Return the index of the candidate that serves `request` best, or None. What is no cap URN is passed over."""
    table: CapTable[int] = CapTable()
    for index, candidate in enumerate(candidates):
        cap = _cap_or_none(candidate)
        if cap is not None:
            table.register(cap, index)
    return table.best_match(request, preferred)
