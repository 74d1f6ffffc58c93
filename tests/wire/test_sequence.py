from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capdag.errors import RemoteProtocolError
from capdag.wire import Frame, FrameType, ReorderBuffer, SeqAssigner, flow_of
from tests.vectors import load, named

FLOWS: dict[str, tuple[int, int | None]] = {"a": (1, None), "a1": (1, 1), "a2": (1, 2), "b": (2, None)}

NEEDED: dict[str, dict[str, Any]] = {"CHUNK": {"chunk_index": 0, "checksum": 0}, "CREDIT": {"credit": 1}}


def made(flow: str, seq: int, kind: str) -> Frame:
    rid, xid = FLOWS[flow]
    return Frame(FrameType[kind], rid, seq, routing_id=xid, **NEEDED.get(kind, {}))


def test_seq_numbers_match_the_vectors() -> None:
    seqs = SeqAssigner()
    for row in load("wire/seq_assigner"):
        frame = made(row["flow"], 0, row["type"])
        went = seqs.assign(frame)
        if row["type"] == "END":
            assert frame.seq == row["seq_after"]
            break
        assert went
        assert frame.seq == (row["seq_after"] if row["type"] not in ("CREDIT", "HEARTBEAT") else 0)
    # Departure: the package numbers on after a terminal, and its writer then suppresses; ours is one step.
    assert not seqs.assign(Frame(FrameType.LOG, 1))
    assert seqs.stragglers == 1
    assert seqs.assign(Frame(FrameType.LOG, 1, routing_id=1))


@pytest.mark.parametrize("row", load("wire/reorder"), ids=named)
def test_the_reorder_buffer_matches_the_vectors(row: dict[str, Any]) -> None:
    buffer = ReorderBuffer(row["max_buffer_per_flow"])
    forgets = row.get("forget_after_terminal", False)
    names = {made(flow, 0, "LOG").id: flow for flow in ("a", "b")}
    for step in row["steps"]:
        frame = made(*step["in"])
        if "error" in step:
            with pytest.raises(RemoteProtocolError, match=step["error"].split("_")[0]):
                buffer.accept(frame)
            continue
        given_back = buffer.accept(frame)
        assert [[f"{names[one.id]}{one.routing_id or ''}", one.seq, one.frame_type.name] for one in given_back] == step[
            "delivered"
        ]
        if forgets and frame.frame_type is FrameType.END:
            buffer.forget(flow_of(frame))


@given(st.permutations(range(12)))
def test_any_order_comes_out_in_order(order: list[int]) -> None:
    buffer = ReorderBuffer(12)
    assert [one.seq for seq in order for one in buffer.accept(made("a", seq, "LOG"))] == list(range(12))


def test_of_a_flow_that_waits_for_nothing_only_its_next_seq_is_kept() -> None:
    buffer = ReorderBuffer(1)
    for seq in (1, 0, 1, 0):  # held, delivered with it, and twice an error
        with suppress(RemoteProtocolError):
            buffer.accept(made("a", seq, "LOG"))
    assert (buffer._held, buffer._expected) == ({}, {(1, None): 2})
    none = ReorderBuffer(0)
    with pytest.raises(RemoteProtocolError, match="overflow"):
        none.accept(made("a", 1, "LOG"))
    assert not none._held


@pytest.mark.parametrize("row", load("wire/flow_keys"), ids=lambda row: f"{row['a']}-{row['b']}")
def test_flows_are_told_apart_as_in_the_vectors(row: dict[str, Any]) -> None:
    a, b = (
        Frame(FrameType.LOG, bytes.fromhex(rid) if isinstance(rid, str) else rid, routing_id=xid)
        for rid, xid in (row["a"], row["b"])
    )
    assert (flow_of(a) == flow_of(b)) == row["same_flow"]
