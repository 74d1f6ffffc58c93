"""Why a cap may serve a request, or may not: the dispatch rule, one verdict for each thing that is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from capdag.urn._cap import CapUrn, Effect
from capdag.urn._forms import MISSING_CLOSED, MISSING_OPEN, tag_fits
from capdag.urn._text import segment


class Axis(StrEnum):
    """Where a verdict was reached (protocol-spec/urn.md, Dispatch)."""

    EFFECT = "effect"
    TAG = "tag"
    OUT = "out"
    IN = "in"


class Verdict(NamedTuple):
    """What one tag of one axis, or the effect, says of a candidate for a request.

    On `in` the candidate asks and the request must fit; on the other axes it is the other way round. `asked` and
    `answer` are tags as canonical text writes them, `answer` "" where that side says nothing; of the effect both are
    its name.
    """

    axis: Axis
    asked: str
    answer: str
    fits: bool

    def __str__(self) -> str:
        """Say what was asked, and the answer where it is another, as in `tag model=a (it has model=b)`."""
        asked = f"{self.axis} {self.asked}"
        if self.answer == self.asked:
            return asked
        if self.axis is Axis.EFFECT:
            return f"{asked} (it has effect {self.answer})"
        if self.axis is Axis.IN:
            return f"{asked} (the request {f'has {self.answer}' if self.answer else 'does not say'})"
        return f"{asked} ({f'it has {self.answer}' if self.answer else 'not there'})"


def explain_dispatch(candidate: CapUrn, request: CapUrn) -> tuple[Verdict, ...]:
    """Return a verdict for everything that is asked, in the order effect, tags, out, in.

    The candidate may serve the request exactly when all of them fit. What asks nothing has no verdict: an open tag,
    an axis without tags, the input of a request that does not say what it sends.
    """
    return tuple(_verdicts(candidate, request))


def _verdicts(candidate: CapUrn, request: CapUrn) -> Iterator[Verdict]:
    if request.effect is not Effect.OPEN:
        same = candidate.effect is request.effect
        yield Verdict(Axis.EFFECT, request.effect.value, candidate.effect.value, same)
    yield from _tag_by_tag(Axis.TAG, candidate.tags, request.tags, MISSING_CLOSED)
    yield from _tag_by_tag(Axis.OUT, candidate.out_media.tags, request.out_media.tags, MISSING_OPEN)
    if not request.in_media.is_unconstrained:
        yield from _tag_by_tag(Axis.IN, request.in_media.tags, candidate.in_media.tags, MISSING_OPEN)


def _tag_by_tag(axis: Axis, answers: Mapping[str, str], asked: Mapping[str, str], missing: str) -> Iterator[Verdict]:
    for key, wanted in asked.items():
        if wanted != MISSING_OPEN:
            answer = answers.get(key)
            said = "" if answer is None else segment(key, answer)
            yield Verdict(axis, segment(key, wanted), said, tag_fits(missing if answer is None else answer, wanted))
