"""What every test with the public package needs."""

from __future__ import annotations

import pytest

from tests.interop.engines import PEER_PYTHON


@pytest.fixture(scope="session")
def peer_environment() -> None:
    """Fail at once where the public package is not installed."""
    if not PEER_PYTHON.exists():
        pytest.fail("the public package has no environment here: run the README's test command, which makes it")
