"""No test of the gateway may leave a fault in its log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_faults(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test in which the gateway logged an error; one that provokes it clears the log."""
    yield
    faults = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not [record.getMessage() for record in faults if record.name.startswith("capdag.gateway")]
