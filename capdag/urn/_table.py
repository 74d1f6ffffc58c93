"""The cap table: who offers which cap, and who serves a request best."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, compress
from typing import Generic, TypeVar

from capdag.urn._cap import CapUrn
from capdag.urn._columns import CapColumns, places_in
from capdag.urn._error import UrnError
from capdag.urn._tagged import CACHED_PARSES, CACHED_TEXT

T = TypeVar("T", bound=Hashable)

_SPARE = 64
"""Places given up that a small table may have before it closes ranks."""
_FEW = 32
"""So many places are sorted sooner than picked out of a whole order."""
_BIT_FLAGS = bytes.maketrans(b"01", b"\0\1")


class Registration(Generic[T]):
    """One cap that one target offers in one table: the handle to retire it with. Compared by identity."""

    __slots__ = ("_place", "cap", "target")

    _place: int

    def __init__(self, cap: CapUrn, target: T) -> None:
        self.cap = cap
        self.target = target

    def __repr__(self) -> str:
        return f"Registration({str(self.cap)!r}, {self.target!r})"


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


class _Rows(Generic[T]):
    """The registrations of a table, each at a place; places are given in the order of registration.

    What is taken out leaves its place empty and keeps its stand in the orders: it serves nothing, so nobody meets it.
    """

    def __init__(self) -> None:
        self._by_place: list[Registration[T] | None] = []
        self._columns = CapColumns()
        self._specificities: list[int] = []
        """By place."""
        self._rising: list[int] = []
        """Places in the order of their specificity; equals in that of registration."""
        self._falling: list[int] = []
        """The same from the most specific down; equals again in that of registration."""

    def __len__(self) -> int:
        """Count the places, those given up too."""
        return len(self._by_place)

    def add(self, registration: Registration[T]) -> None:
        place, cap = len(self._by_place), registration.cap
        registration._place = place
        self._by_place.append(registration)
        self._columns.add(place, cap)
        self._specificities.append(cap.specificity())
        insort(self._rising, place, key=self._specificities.__getitem__)
        insort(self._falling, place, key=self._generality)

    def remove(self, registration: Registration[T]) -> None:
        self._by_place[registration._place] = None
        self._columns.remove(registration._place)

    def rank(self, request: CapUrn, hint: CapUrn | None) -> Iterator[Registration[T]]:
        """Return the registrations that may serve, best first; one that the hint puts first may come again."""
        serving = self._columns.serving(request)
        outwards = self._outwards(serving, request.specificity())
        places = outwards if hint is None else chain(self._same_as(hint, serving), outwards)
        return map(self._at, places)

    def _outwards(self, serving: int, specificity: int) -> Iterator[int]:
        """Yield the places as specific or more, nearest first, then the less specific, nearest first."""
        if serving.bit_count() <= _FEW:
            yield from sorted(places_in(serving), key=lambda place: self._distance(place, specificity))
            return
        served = f"{serving:0{len(self)}b}".encode().translate(_BIT_FLAGS)[::-1]
        first_up = bisect_left(self._rising, specificity, key=self._specificities.__getitem__)
        first_down = bisect_right(self._falling, -specificity, key=self._generality)
        for order in (self._rising[first_up:], self._falling[first_down:]):
            yield from compress(order, map(served.__getitem__, order))

    def _same_as(self, hint: CapUrn, serving: int) -> Iterator[int]:
        """Yield those whose in, out and tags are the hint's. The effect is not compared."""
        for place in places_in(self._columns.saying(serving, hint)):
            cap = self._at(place).cap
            if cap.in_media == hint.in_media and cap.out_media == hint.out_media and cap.tags == hint.tags:
                yield place

    def _at(self, place: int) -> Registration[T]:
        row = self._by_place[place]
        assert row is not None
        return row

    def _generality(self, place: int) -> int:
        return -self._specificities[place]

    def _distance(self, place: int, specificity: int) -> tuple[bool, int]:
        beyond = self._specificities[place] - specificity
        return beyond < 0, abs(beyond)


class CapTable(Generic[T]):
    """Registered caps, each with a target, and the choice among them (protocol-spec/urn.md, ranking).

    Of the caps that may serve a request the nearest that is at least as specific wins, else the nearest less specific
    one; between equals the earliest registered. Targets must be hashable; equal targets count as one.

    A look-up holds the request against all caps at once and walks those that may serve outwards from the specificity
    of the request. What it found is kept until a registration changes.
    """

    def __init__(self) -> None:
        self._rows: _Rows[T] = _Rows()
        self._by_target: dict[T, dict[Registration[T], None]] = {}
        self._registered: dict[Registration[T], None] = {}
        self._ranking = lru_cache(CACHED_PARSES)(self._rank)

    def __len__(self) -> int:
        return len(self._registered)

    def __iter__(self) -> Iterator[Registration[T]]:
        """Iterate over a snapshot, in the order registered."""
        return iter(tuple(self._registered))

    def register(self, cap: CapUrn, target: T) -> Registration[T]:
        """Add a cap that `target` offers. The same pair may be there many times, each with its own handle."""
        registration = Registration(cap, target)
        self._rows.add(registration)
        self._registered[registration] = None
        self._by_target.setdefault(target, {})[registration] = None
        self._ranking.cache_clear()
        return registration

    def retire(self, registration: Registration[T]) -> None:
        """Take a registration out. One that is not there (any more) is left alone."""
        if registration not in self._registered:
            return
        del self._registered[registration]
        self._rows.remove(registration)
        offered = self._by_target[registration.target]
        del offered[registration]
        if not offered:
            del self._by_target[registration.target]
        self._ranking.cache_clear()
        if len(self._rows) > 2 * len(self._registered) + _SPARE:
            self._close_ranks()

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
        for target in self.ranking(request, preferred):
            if usable is None or usable(target):
                return target
        return None

    def ranking(self, request: CapUrn | str, preferred: str | None = None) -> Iterator[T]:
        """Yield the target of every cap that may serve `request`, best first, one that is preferred maybe twice.

        The table must not change meanwhile.
        """
        wanted = _cap_or_none(request)
        if wanted is not None:
            for registration in self._ranked(wanted, _cap_or_none(preferred)):
                yield registration.target

    def _ranked(self, request: CapUrn, hint: CapUrn | None) -> _Ranking[T]:
        if len(str(request)) > CACHED_TEXT or (hint is not None and len(str(hint)) > CACHED_TEXT):
            return self._rank(request, hint)
        return self._ranking(request, hint)

    def _rank(self, request: CapUrn, hint: CapUrn | None) -> _Ranking[T]:
        return _Ranking(self._rows.rank(request, hint))

    def _close_ranks(self) -> None:
        """Start afresh, without the places and keys that have been given up; the order stays."""
        self._rows = _Rows()
        for registration in self._registered:
            self._rows.add(registration)


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
