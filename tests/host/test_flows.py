"""One direction of a request: the edge that counts, the hold that waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capdag.host.flows import Edge, Flow, Hold
from capdag.wire import (
    DEFAULT_LIMITS,
    RESPONSE,
    Frame,
    FrameType,
    FrameView,
    credit_frame,
    end_frame,
    view_of,
)

RID = b"r" * 16
LIMITS = DEFAULT_LIMITS._replace(initial_credit=3, max_chunk=10)


def chunk(stream: str = "s", index: int = 0, size: int = 1, seq: int = 0) -> FrameView:
    payload = bytes(size)
    return view_of(Frame(FrameType.CHUNK, RID, seq, stream_id=stream, payload=payload, chunk_index=index, checksum=0))


def start(stream: str = "s") -> FrameView:
    return view_of(Frame(FrameType.STREAM_START, RID, stream_id=stream, media_urn="media:"))


def stop(stream: str = "s") -> FrameView:
    return view_of(Frame(FrameType.STREAM_END, RID, stream_id=stream))


END = view_of(end_frame(RID))


def test_edge_counts_chunks_minus_grants_a_stream() -> None:
    """H20."""
    edge = Edge(LIMITS, max_streams=2)
    assert [edge.fault(view) for view in (start(), chunk(), chunk(), chunk())] == [None] * 4
    fault = edge.fault(chunk())
    assert fault is not None
    assert fault.code == "CREDIT_VIOLATION"
    assert "without credit (its window is 3)" in fault.text
    assert edge.fault(chunk("other")) is None
    edge.grant("s", 1)
    assert edge.fault(chunk()) is None
    assert edge.fault(chunk()) is not None


def test_grant_never_lifts_what_remains_above_the_window() -> None:
    """H20."""
    edge = Edge(LIMITS, max_streams=2)
    edge.fault(chunk())
    edge.grant("s", 1000)
    assert [edge.fault(chunk()) is None for _ in range(4)] == [True, True, True, False]


def test_edge_bounds_streams_and_payloads() -> None:
    """H20."""
    edge = Edge(LIMITS, max_streams=2)
    assert [edge.fault(start(name)) for name in "ab"] == [None, None]
    for view in (start("c"), chunk("c")):
        fault = edge.fault(view)
        assert fault is not None
        assert (fault.code, "more than 2 streams" in fault.text) == ("PROTOCOL_VIOLATION", True)
    assert edge.fault(chunk("a", size=15)) is None
    fault = edge.fault(chunk("a", size=16))
    assert fault is not None
    assert "16 bytes on stream 'a'; the most is 15" in fault.text


def test_edge_bounds_names_and_meta_which_cost_no_credit() -> None:
    """H20."""
    edge = Edge(LIMITS._replace(max_chunk=200_000), max_streams=2)
    common = {"stream_id": "s", "chunk_index": 0, "checksum": 0}
    named = Frame(FrameType.STREAM_START, RID, stream_id="s" * 70_000, media_urn="media:")
    told = Frame(FrameType.CHUNK, RID, payload=bytes(9), meta={"a": bytes(70_000)}, **common)  # type: ignore[arg-type]
    for frame in (named, told):
        fault = edge.fault(view_of(frame))
        assert fault is not None
        assert fault.code == "PROTOCOL_VIOLATION"
        assert f"sent a {frame.frame_type.name} of 70" in fault.text
        assert "bytes besides its payload; the most is 65536" in fault.text
    assert edge.remaining == {}
    full = Frame(FrameType.CHUNK, RID, payload=bytes(150_000), meta={"a": bytes(65_000)}, **common)  # type: ignore[arg-type]
    assert edge.fault(view_of(full)) is None


def test_grant_without_a_stream_means_the_only_one() -> None:
    edge, hold = Edge(LIMITS, max_streams=2), Hold(1)
    edge.fault(chunk())
    assert edge.ungranted() == [("s", 1)]
    edge.grant(None, 1)
    assert edge.ungranted() == []
    edge.fault(chunk("other"))
    edge.grant(None, 1)
    assert edge.ungranted() == [("other", 1)]
    assert hold.offer(chunk())
    assert not hold.offer(chunk())
    assert len(hold.grant(None, 1)) == 1


def test_grants_for_streams_that_are_not_there_cost_nothing() -> None:
    edge, hold = Edge(LIMITS, max_streams=2), Hold(1)
    for number in range(100):
        edge.grant(f"s{number}", 1)
        assert hold.grant(f"s{number}", 1) == []
    assert not any(f"s{number}" in edge.remaining for number in range(100))
    assert hold.offer(chunk("s1"))


def test_hold_keeps_chunks_until_they_are_granted_and_the_end_behind_them() -> None:
    """H21."""
    hold = Hold(2)
    chunks = [chunk(index=index) for index in range(5)]
    assert [hold.offer(view) for view in (start(), *chunks)] == [True, True, True, False, False, False]
    ended = stop()
    assert [hold.offer(ended), hold.offer(END)] == [False, False]
    assert hold.grant("s", 1) == [chunks[2]]
    assert hold.grant("s", 2) == [chunks[3], chunks[4], ended, END]


def test_streams_wait_for_themselves() -> None:
    """H21: a receiver may read the second stream to its end before it touches the first."""
    hold = Hold(1)
    assert [hold.offer(view) for view in (chunk("a"), chunk("a"), chunk("b"), stop("b"), chunk("b"))] == [
        True, False, True, True, False,
    ]  # fmt: skip
    assert not hold.offer(END)
    assert len(hold.grant("b", 1)) == 1
    assert hold.grant("a", 1)[-1] is END


def test_discarded_frames_are_given_back() -> None:
    hold = Hold(1)
    first, second = chunk(), chunk()
    assert [hold.offer(first), hold.offer(second), hold.offer(END)] == [True, False, False]
    assert hold.discard() == [second, END]
    assert hold.offer(END)


@given(st.lists(st.sampled_from(["a", "b", "grant a", "grant b"]), max_size=60), st.integers(1, 4))
def test_what_passes_keeps_its_order_and_never_exceeds_the_grants(steps: list[str], window: int) -> None:
    """H21."""
    hold = Hold(window)
    granted = {"a": window, "b": window}
    passed: dict[str, list[int]] = {"a": [], "b": []}
    sent = {"a": 0, "b": 0}
    for step in steps:
        if step.startswith("grant"):
            name = step[-1]
            freed = hold.grant(name, 1)
            # A grant for a full window is lost, as it is for any sender.
            granted[name] = min(granted[name] + 1, len(passed[name]) + window) if sent[name] else granted[name]
        else:
            view = chunk(step, sent[step])
            sent[step] += 1
            freed = [view] if hold.offer(view) else []
        for view in freed:
            passed[str(view.stream_id)].append(view.fields[14])
        for name, indexes in passed.items():
            assert indexes == list(range(len(indexes)))
            assert len(indexes) == min(sent[name], granted[name])


def test_flow_follows_the_last_number_and_the_terminal() -> None:
    """H18."""
    flow = Flow()
    assert (flow.next_seq, flow.ended) == (0, False)
    flow.note(chunk(seq=7))
    flow.note(chunk(seq=3))
    assert flow.next_seq == 8
    flow.note(END)
    assert flow.ended


def test_flow_grants_at_its_edge_and_frees_what_it_holds() -> None:
    flow = Flow()
    flow.edge, flow.hold = Edge(LIMITS, 2), Hold(2)
    views = [chunk(index=index) for index in range(3)]
    assert [flow.edge.fault(view) for view in views] == [None] * 3
    assert [flow.offer(view) for view in views] == [True, True, False]
    assert flow.grant(view_of(credit_frame(RID, "s", 2, RESPONSE))) == views[2:]
    assert flow.ungranted() == [("s", 1)]
