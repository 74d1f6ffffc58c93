from __future__ import annotations

import pytest

from capdag.errors import LocalProtocolError
from capdag.wire import Frame, FrameCounts, FrameType, ReleasedRing, RequestTable, TableFullError, view_of


def test_a_row_is_registered_once_and_taken_whole() -> None:
    table: RequestTable[int, str] = RequestTable(limit=2)
    table.register(1, "a")
    with pytest.raises(LocalProtocolError, match="already live"):
        table.register(1, "b")
    table.register(2, "b")
    with pytest.raises(TableFullError, match="table_limit"):
        table.register(3, "c")
    assert table.take(1) == "a"
    assert table.take(1) is None
    assert (len(table), table.registered_total) == (1, 2)


def test_stragglers_are_told_from_drops() -> None:
    ring = ReleasedRing(size=2)
    counts = FrameCounts(ring)
    for rid in (1, 2, 3):
        ring.add(rid)
    assert counts.unroutable(view_of(Frame(FrameType.LOG, 3))) is None
    line = counts.unroutable(view_of(Frame(FrameType.LOG, 1)))
    assert line is not None
    assert "no_route" in line
    assert counts.snapshot() == {
        "drops": {"total": 1, "by_reason": {"no_route": 1}, "by_reason_frame_type": {"no_route": {"log": 1}}},
        "stragglers": {"total": 1, "by_frame_type": {"log": 1}},
    }
