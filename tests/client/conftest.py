"""Calls are tested over both kinds of link, as the switch is."""

from __future__ import annotations

from tests.relay.conftest import clock, kind, no_turn_fails

__all__ = ["clock", "kind", "no_turn_fails"]
