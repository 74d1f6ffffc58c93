"""The test model as a fixture, made once a session. `from tests.models_fixture import alphabet_model` brings it in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_gguf import make_alphabet


@pytest.fixture(scope="session")
def alphabet_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of `alphabet.gguf`, alone in its folder, so that the folder can serve as a models folder."""
    return make_alphabet(tmp_path_factory.mktemp("models") / "alphabet.gguf")
