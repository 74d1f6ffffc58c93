# ruff: noqa: PT017 - these are no tests of pytest, whose `raises` would hide what else comes

"""URN text, two a line. Any text is read or gives a UrnError; canonical text is a fixed point; predicates of two URNs
that were read always answer, and agree; a cap may serve itself; the reasons given for a dispatch are its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from capdag.urn import CapUrn, MediaUrn, TaggedUrn, UrnError, explain_dispatch

from ..vectors import load

U = TypeVar("U", TaggedUrn, MediaUrn, CapUrn)


def seeds() -> Iterator[bytes]:
    """The texts of the vectors, and pairs of them."""
    yield from (row["s"].encode("utf-8", "replace") for row in load("urn/canonical"))
    yield from (f"{row['c']}\n{row['r']}".encode() for row in load("urn/dispatch")[::8])


def check(data: bytes) -> None:
    """See the module."""
    texts = data.decode("utf-8", "replace").split("\n")[:2]
    for text in texts:
        _read(TaggedUrn, text)
    _check_media([urn for text in texts if (urn := _read(MediaUrn, text)) is not None])
    _check_caps([urn for text in texts if (urn := _read(CapUrn, text)) is not None])


def _read(kind: type[U], text: str) -> U | None:
    try:
        urn = kind.parse(text)
    except UrnError as error:
        assert str(error)
        return None
    assert kind.parse(str(urn)) == urn
    assert str(kind.parse(str(urn))) == str(urn)
    return urn


def _check_media(found: list[MediaUrn]) -> None:
    for one in found:
        for other in found:
            assert one.accepts(other) == other.conforms_to(one)
            assert not one.is_equivalent(other) or one.is_comparable(other)


def _check_caps(found: list[CapUrn]) -> None:
    for candidate in found:
        for request in found:
            serves = candidate.is_dispatchable(request)
            assert serves or candidate is not request
            assert all(verdict.fits for verdict in explain_dispatch(candidate, request)) == serves
            assert not serves or candidate.may_dispatch(request)
