"""A request, and the verdicts on each candidate for it as lines to read."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from capdag.errors import ConfigError
from capdag.printable import printable
from capdag.urn import CapTable, CapUrn, UrnError, Verdict, explain_dispatch

from ._candidates import Candidate


def parse_request(text: str) -> CapUrn:
    """Read the cap URN of a command line. Raises ConfigError."""
    try:
        return CapUrn.parse(text)
    except UrnError as error:
        raise ConfigError(f"{text!r} is no cap URN: {error}") from None


def needs_of_chat(file: Path) -> CapUrn:
    """Return what the gateway asks for a chat body; `-` is stdin.

    Raises ConfigError for a file that cannot be read, and ApiError, as a client would get it, for a wrong body.
    """
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    # Here, since the gateway brings its HTTP server along: a cap alone is explained in half the time.
    from capdag.gateway.bodies import ChatBody, read_chat
    from capdag.gateway.needs import chat_needs

    read_chat(data)
    return CapUrn.parse(chat_needs(msgspec.json.decode(data, type=ChatBody)))


def explain_request(candidates: Sequence[Candidate], request: CapUrn) -> tuple[list[str], bool]:
    """Return the explanation, line by line, and whether anything serves the request."""
    table: CapTable[Candidate] = CapTable()
    for candidate in candidates:
        table.register(candidate.cap, candidate)
    serving = list(table.ranking(request))
    served = set(serving)
    refused = [candidate for candidate in candidates if candidate not in served]
    return list(_lines(request, serving, refused)), bool(serving)


def _lines(request: CapUrn, serving: Sequence[Candidate], refused: Sequence[Candidate]) -> Iterator[str]:
    yield f"request: {printable(str(request))}"
    yield f"served by {len(serving)} of {len(serving) + len(refused)} caps; nearest first"
    for place, (owner, cap) in enumerate(serving, 1):
        reasons = ", ".join(map(str, explain_dispatch(cap, request)))
        yield f"\n{place:3}. {printable(owner)}"
        yield f"     {printable(str(cap))}"
        yield f"     let in by {printable(reasons) or 'a request that asks nothing'}"
        yield f"     {_standing(cap, request)}"
    for (owner, cap), faults in _nearest_first(request, refused):
        yield f"\n  -  {printable(owner)}"
        yield f"     {printable(str(cap))}"
        yield f"     kept out by {printable(', '.join(map(str, faults)))}"


def _nearest_first(request: CapUrn, refused: Sequence[Candidate]) -> list[tuple[Candidate, list[Verdict]]]:
    found = [(candidate, explain_dispatch(candidate.cap, request)) for candidate in refused]
    faults = [(candidate, [verdict for verdict in verdicts if not verdict.fits]) for candidate, verdicts in found]
    return sorted(faults, key=lambda pair: len(pair[1]))


def _standing(cap: CapUrn, request: CapUrn) -> str:
    beyond = cap.specificity() - request.specificity()
    where = f"{abs(beyond):,} {'above' if beyond > 0 else 'below'}" if beyond else "equal to"
    return f"{cap.grade(request)}; its specificity is {where} the request's"
