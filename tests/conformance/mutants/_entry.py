"""Where a mutant is entered."""

from __future__ import annotations

from collections.abc import Callable

from tests.conformance.plain import Plain

ENTERED: dict[str, type[Plain]] = {}


def finds(case: str) -> Callable[[type[Plain]], type[Plain]]:
    """Enter the decorated cartridge under the case that finds what it does wrong."""

    def enter(kind: type[Plain]) -> type[Plain]:
        assert case not in ENTERED
        ENTERED[case] = kind
        return kind

    return enter
