"""Fixtures of the host's tests."""

from __future__ import annotations

from tests.transport.test_exits import small_group

__all__ = ["small_group"]
