"""Fixtures that every test gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.leaks import assert_no_leaks, mark_descendants

mark_descendants()


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fail a test that leaves a process or a descriptor behind (its trio run has ended by then, so no task can)."""
    with assert_no_leaks():
        yield
