"""Cartridges that do one thing wrong, each entered under the case that is to find it."""

from __future__ import annotations

from tests.conformance.mutants import ending, errors, flow, opening, streams
from tests.conformance.mutants._entry import ENTERED as MUTANTS

__all__ = ["MUTANTS", "ending", "errors", "flow", "opening", "streams"]
