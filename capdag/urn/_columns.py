"""All caps of a table at once: who says what of which key, and so who may serve a request.

A set of caps is an int with a bit for the place of each. Joining and cutting whole sets takes a machine word for
thirty caps, so a request costs the same whether all of ten thousand caps may serve it or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from capdag.urn._cap import CapUrn, Effect
from capdag.urn._forms import (
    FITS,
    MISSING_CLOSED,
    MISSING_OPEN,
    form_of,
    operand_of,
    spelled,
)

_FITTED = tuple(map("".join, zip(*FITS, strict=True)))
"""Which form, down, is fitted by which, across."""
_ALL_FORMS = "YYYYYY"
_FEW = 16


def places_in(mask: int) -> Iterator[int]:
    """Yield the places of a set, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class Places:
    """A set of places that grows. The last few that came are a list: most sets never hold more."""

    __slots__ = ("_few", "_many")

    def __init__(self) -> None:
        self._few: list[int] = []
        self._many = 0

    @property
    def mask(self) -> int:
        """The set as an int."""
        mask = self._many
        for place in self._few:
            mask |= 1 << place
        return mask

    def add(self, place: int) -> None:
        """Put in a place that is not there."""
        self._few.append(place)
        if len(self._few) > _FEW:
            self._many = self.mask
            self._few.clear()


class _Column:
    """One key: the places that have it, by the form of their tag and by its stored text."""

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[int | str, Places] = {}

    def add(self, place: int, stored: str) -> None:
        for name in (form_of(stored), stored):
            places = self._sets.get(name)
            if places is None:
                places = self._sets[name] = Places()
            places.add(place)

    def having(self, name: int | str) -> int:
        """Return the places whose tag has this form, or this stored text."""
        places = self._sets.get(name)
        return 0 if places is None else places.mask

    def matching(self, rules: str, operand: str) -> int:
        """Return the places whose form's rule holds: Y yes, - no, = their operand is `operand`, # it is not."""
        found = 0
        for form, rule in enumerate(rules):
            if rule == "Y":
                found |= self.having(form)
            elif rule == "=":
                found |= self.having(spelled(form, operand))
            elif rule == "#":
                found |= self.having(form) & ~self.having(spelled(form, operand))
        return found


class _Axis:
    """The columns of one axis of all caps."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    def add(self, place: int, tags: Mapping[str, str]) -> None:
        for key, stored in tags.items():
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = _Column()
            column.add(place, stored)

    def fitting(self, among: int, wanted: Mapping[str, str], missing: str) -> int:
        """Return those of `among` whose every tag fits `wanted`; `missing` says how a key they lack is read."""
        for key, stored in wanted.items():
            form = form_of(stored)
            rules, column = _FITTED[form], self._columns.get(key)
            silence_fits = rules[form_of(missing)] == "Y"
            if column is None:
                found = -1 if silence_fits else 0
            else:
                found = column.matching(rules, operand_of(stored, form))
                if silence_fits:
                    found |= ~column.matching(_ALL_FORMS, "")
            among &= found
            if not among:
                break
        return among

    def having(self, among: int, tags: Mapping[str, str]) -> int:
        """Return those of `among` that have each of `tags` just so."""
        for key, stored in tags.items():
            column = self._columns.get(key)
            among &= 0 if column is None else column.having(stored)
        return among


class _Inputs(_Axis):
    """The input axis, where it is the request that must fit: each cap counts how many of its tags ask something."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        super().__init__()
        self._counts: list[Places] = []
        """Bit by bit, lowest first: the places with that bit in their count."""

    def add(self, place: int, tags: Mapping[str, str]) -> None:
        super().add(place, tags)
        count = sum(stored != MISSING_OPEN for stored in tags.values())
        while len(self._counts) < count.bit_length():
            self._counts.append(Places())
        for bit in places_in(count):
            self._counts[bit].add(place)

    def fitted(self, among: int, given: Mapping[str, str]) -> int:
        """Return those of `among` whose tags `given` fits: who has as many met as it has in all."""
        met: list[int] = []
        for key, stored in given.items():
            column = self._columns.get(key)
            if column is not None:
                form = form_of(stored)
                _count(met, column.matching("-" + FITS[form][1:], operand_of(stored, form)))
        for have, need in zip_longest(met, (counted.mask for counted in self._counts), fillvalue=0):
            among &= ~(have ^ need)
        return among


def _count(totals: list[int], mask: int) -> None:
    """Add one to the total of every place in `mask`; the totals are kept bit by bit, lowest first."""
    for bit, have in enumerate(totals):
        totals[bit] = have ^ mask
        mask &= have
    if mask:
        totals.append(mask)


class CapColumns:
    """The four coordinates of all caps of a table, each cap at a place of its own.

    A cap that is taken out is no longer found, but stays in the sets: begin anew when many have been.
    """

    __slots__ = ("_effects", "_here", "_inputs", "_outputs", "_tags")

    def __init__(self) -> None:
        self._here = 0
        self._effects: dict[Effect, Places] = {effect: Places() for effect in Effect}
        self._inputs, self._outputs, self._tags = _Inputs(), _Axis(), _Axis()

    def add(self, place: int, cap: CapUrn) -> None:
        """Put a cap at a place that was never used."""
        self._here |= 1 << place
        self._effects[cap.effect].add(place)
        self._inputs.add(place, cap.in_media.tags)
        self._outputs.add(place, cap.out_media.tags)
        self._tags.add(place, cap.tags)

    def remove(self, place: int) -> None:
        """Take out the cap that is at `place`."""
        self._here ^= 1 << place

    def serving(self, request: CapUrn) -> int:
        """Return the places of the caps that may serve `request`: those for which `is_dispatchable` holds."""
        found = self._here
        if request.effect is not Effect.OPEN:
            found &= self._effects[request.effect].mask
        found = self._tags.fitting(found, request.tags, MISSING_CLOSED)
        found = self._outputs.fitting(found, request.out_media.tags, MISSING_OPEN)
        if found and not request.in_media.is_unconstrained:
            found = self._inputs.fitted(found, request.in_media.tags)
        return found

    def saying(self, among: int, hint: CapUrn) -> int:
        """Return those of `among` that have all tags of `hint`, in, out and others; they may have more."""
        among = self._tags.having(among, hint.tags)
        among = self._outputs.having(among, hint.out_media.tags)
        return self._inputs.having(among, hint.in_media.tags)
