"""Calls are tested over both kinds of link, as the switch is."""

from __future__ import annotations

from tests.relay.conftest import clock, kind

__all__ = ["clock", "kind"]
