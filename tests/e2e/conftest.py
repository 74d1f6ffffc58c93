"""The test model, for the tests of this folder."""

from __future__ import annotations

from tests.models_fixture import alphabet_model

__all__ = ["alphabet_model"]
