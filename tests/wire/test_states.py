"""A walk through every state and every frame type of every table, forbidden ones included, on the machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import pytest

from capdag.errors import RemoteProtocolError
from capdag.wire import (
    IDENTITY_CAP,
    REQUEST,
    RESPONSE,
    TERMINAL_TYPES,
    CreditViolationError,
    Frame,
    FrameType,
    FrameView,
    InStreams,
    ReceiveWindow,
    SendWindow,
    fnv1a_64,
    hello_frame,
    view_of,
)
from capdag.wire.conversation import Conversation, LinkKind
from capdag.wire.life import Table, Verdict
from capdag.wire.limits import DEFAULT_LIMITS
from capdag.wire.link_life import LINK_LIFE, Direction, LinkEvent, LinkSide, LinkState
from capdag.wire.request_life import REQUEST_LIFE, RequestEvent, RequestState, Side
from capdag.wire.stream_life import (
    RECEIVER_LIFE,
    SENDER_LIFE,
    STREAM_EVENTS,
    STREAM_LIFE,
    StreamEvent,
    StreamState,
    WindowEvent,
    WindowState,
)

from .drawings import PAGE, page

_T = FrameType
RID = bytes(range(16))
UP, DOWN = Direction.CARTRIDGE_TO_HOST, Direction.HOST_TO_CARTRIDGE


def frame(kind: FrameType, **fields: Any) -> FrameView:
    """A good frame of any type, about one stream of one request."""
    needed: dict[FrameType, dict[str, Any]] = {
        _T.HELLO: {"meta": hello_frame(DEFAULT_LIMITS).meta},
        _T.REQ: {"cap": "cap:x;in=media:a;out=media:b"},
        _T.CHUNK: {"stream_id": "s", "payload": b"\x00", "chunk_index": 0, "checksum": fnv1a_64(b"\x00")},
        _T.STREAM_START: {"stream_id": "s", "media_urn": "media:a"},
        _T.STREAM_END: {"stream_id": "s"},
        _T.CREDIT: {"stream_id": "s", "credit": 1},
        _T.POLICY: {"meta": {"network": "full"}},
    }
    return view_of(Frame(kind, RID, **{**needed.get(kind, {}), **fields}))


def cells(table: Table[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return [(state, event) for state, row in table.items() for event in row]


def reachable(table: Table[Any, Any], start: Enum) -> set[Enum]:
    found, fresh = {start}, [start]
    while fresh:
        new = {cell.to for cell in table[fresh.pop()].values() if cell.to is not None} - found
        found |= new
        fresh += new
    return found


TABLES: Mapping[str, tuple[Table[Any, Any], Enum]] = {
    **{direction.value: (table, LinkState.SILENT) for direction, table in LINK_LIFE.items()},
    "request": (REQUEST_LIFE, RequestState.NONE),
    "stream": (STREAM_LIFE, StreamState.NONE),
    "sender": (SENDER_LIFE, WindowState.CREDIT),
    "receiver": (RECEIVER_LIFE, WindowState.CREDIT),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_has_every_event_and_can_be_reached(name: str) -> None:
    table, start = TABLES[name]
    assert len({frozenset(row) for row in table.values()}) == 1
    assert reachable(table, start) == set(table)


# Links

LINK_CELLS = [
    (direction, state, kind) for direction in Direction for state in LINK_LIFE[direction] for kind in FrameType
]


@pytest.mark.parametrize(("direction", "state", "kind"), LINK_CELLS)
def test_a_link_judges_every_frame_in_every_state(direction: Direction, state: LinkState, kind: FrameType) -> None:
    side = LinkSide(direction, state)
    cell = LINK_LIFE[direction][state][LinkEvent[kind.name]]
    if cell.verdict is Verdict.VIOLATE:
        with pytest.raises(RemoteProtocolError, match=kind.name):
            side.take(frame(kind))
        assert side.state is LinkState.OVER
    else:
        assert side.take(frame(kind)) is cell
        assert side.state is (cell.to or state)


def test_a_link_that_is_over_stays_over() -> None:
    for direction in Direction:
        row = LINK_LIFE[direction][LinkState.OVER]
        assert {(cell.verdict, cell.to) for cell in row.values()} == {(Verdict.VIOLATE, LinkState.OVER)}
        for row in LINK_LIFE[direction].values():
            wrong = [cell for cell in row.values() if cell.verdict is Verdict.VIOLATE]
            assert {cell.to for cell in wrong} == {LinkState.OVER}


def test_the_first_frame_of_each_side_is_the_only_one_of_its_kind() -> None:
    greetings = {
        direction: {event for event, cell in table[LinkState.SILENT].items() if cell.verdict is Verdict.TAKE}
        for direction, table in LINK_LIFE.items()
    }
    assert greetings == {
        Direction.HOST_TO_CARTRIDGE: {LinkEvent.HELLO},
        Direction.CARTRIDGE_TO_HOST: {LinkEvent.HELLO},
        Direction.HOST_TO_SWITCH: {LinkEvent.RELAY_NOTIFY},
        Direction.SWITCH_TO_HOST: {LinkEvent.POLICY, LinkEvent.RELAY_STATE},
    }


@pytest.mark.parametrize("kind", [_T.HELLO, _T.POLICY, _T.RELAY_NOTIFY, _T.RELAY_STATE])
def test_what_a_cartridge_must_never_send_ends_its_link(kind: FrameType) -> None:
    for state in (LinkState.GREETED, LinkState.OPEN):
        assert LINK_LIFE[UP][state][LinkEvent[kind.name]].verdict is Verdict.VIOLATE


def test_before_policy_only_identity_is_served() -> None:
    asks = frame(_T.REQ, cap=IDENTITY_CAP)
    assert LinkSide(DOWN, LinkState.GREETED).take(asks).verdict is Verdict.TAKE
    assert LinkSide(DOWN, LinkState.GREETED).take(frame(_T.REQ)).verdict is Verdict.REFUSE


def test_the_identity_that_a_cartridge_asks_for_proves_nothing_about_its_host() -> None:
    conversation = Conversation(LinkKind.PIPE, state=LinkState.OPEN)
    conversation.take(UP, frame(_T.REQ, cap=IDENTITY_CAP))
    assert conversation.take(DOWN, frame(_T.END, meta={"exit_code": 0})) is Verdict.TAKE
    assert (conversation.state(DOWN), len(conversation)) == (LinkState.OPEN, 0)


@pytest.mark.parametrize("direction", Direction)
def test_what_cannot_be_read_ends_the_link(direction: Direction) -> None:
    side = LinkSide(direction)
    with pytest.raises(RemoteProtocolError):
        side.malformed("a frame is a CBOR map, not int")
    assert side.state is LinkState.OVER


def test_a_bad_first_frame_ends_the_link_in_a_conversation() -> None:
    conversation = Conversation(LinkKind.PIPE)
    with pytest.raises(RemoteProtocolError, match="version"):
        conversation.take(DOWN, frame(_T.HELLO, meta={}))
    assert conversation.state(DOWN) is LinkState.OVER


# Requests

BEFORE: Mapping[RequestState, list[tuple[Direction, FrameView]]] = {
    RequestState.NONE: [],
    RequestState.BODY: [(DOWN, frame(_T.REQ))],
    RequestState.ANSWER: [(DOWN, frame(_T.REQ)), (DOWN, frame(_T.END))],
    RequestState.CANCELLED: [(DOWN, frame(_T.REQ)), (DOWN, frame(_T.CANCEL))],
}
"""What brings a conversation in which both sides have an open stream into each state."""


def in_state(state: RequestState) -> Conversation:
    conversation = Conversation(LinkKind.PIPE, state=LinkState.OPEN)
    for direction, view in BEFORE[state]:
        conversation.take(direction, view)
    return conversation


def sent(side: Side, kind: FrameType) -> FrameView:
    if kind is _T.CREDIT:
        return frame(kind, meta={"credit_dir": RESPONSE if side is Side.REQUESTER else REQUEST})
    return frame(kind)


@pytest.mark.parametrize(("state", "event"), cells(REQUEST_LIFE))
def test_a_request_judges_every_frame_in_every_state(state: RequestState, event: RequestEvent) -> None:
    side, kind = event
    conversation = in_state(state)
    direction = DOWN if side is Side.REQUESTER else UP
    if kind in (_T.CHUNK, _T.STREAM_END) and REQUEST_LIFE[state][event].verdict is Verdict.TAKE:
        conversation.take(direction, sent(side, _T.STREAM_START))
    cell = REQUEST_LIFE[state][event]
    if cell.verdict is Verdict.ELSEWHERE:
        return  # HELLO and its like: walked above; a REQ of the other end: below
    assert conversation.take(direction, sent(side, kind)) is cell.verdict
    live = (cell.to or state) is not RequestState.NONE
    assert len(conversation) == live
    if cell.verdict is Verdict.COUNT:
        assert conversation.counts.drops.total() + conversation.counts.stragglers.total() == 1


def test_a_request_of_the_other_end_under_the_same_id_is_another_request() -> None:
    conversation = in_state(RequestState.ANSWER)
    assert conversation.take(UP, frame(_T.REQ)) is Verdict.TAKE
    assert len(conversation) == 2
    conversation.take(UP, frame(_T.END))  # the body of the second: its requester has still to say it
    conversation.take(UP, frame(_T.END))  # the answer of the first
    assert len(conversation) == 1
    conversation.take(DOWN, frame(_T.END))
    assert len(conversation) == 0


def test_only_a_terminal_of_the_handler_ends_a_request_and_it_always_does() -> None:
    for state in set(RequestState) - {RequestState.NONE}:
        ending = {event for event, cell in REQUEST_LIFE[state].items() if cell.to is RequestState.NONE}
        assert ending == {(Side.HANDLER, kind) for kind in TERMINAL_TYPES}
    begun = {event for event, cell in REQUEST_LIFE[RequestState.NONE].items() if cell.verdict is Verdict.TAKE}
    assert begun == {(Side.REQUESTER, _T.REQ)}


@pytest.mark.parametrize("kind", sorted(TERMINAL_TYPES))
def test_nothing_survives_a_terminal(kind: FrameType) -> None:
    conversation = in_state(RequestState.BODY)
    for direction in (UP, DOWN):
        conversation.take(direction, frame(_T.STREAM_START))
    conversation.take(UP, frame(kind))
    for late in (_T.CHUNK, _T.STREAM_END, _T.LOG, _T.END, _T.ERR):
        assert conversation.take(UP, frame(late)) is Verdict.COUNT
    assert conversation.counts.stragglers.total() == 5
    assert (len(conversation), conversation.counts.drops.total()) == (0, 0)


# Streams


def a_stream(state: StreamState, **fields: Any) -> InStreams:
    streams = InStreams(32)
    if state is not StreamState.NONE:
        streams.start(frame(_T.STREAM_START, is_sequence=True))
    if state is StreamState.IN_ITEM:
        piece = b"\x42a"
        streams.of(frame(_T.CHUNK)).chunk(frame(_T.CHUNK, payload=piece, checksum=fnv1a_64(piece)))
    elif state is StreamState.ENDED:
        streams.of(frame(_T.STREAM_END)).end(frame(_T.STREAM_END))
    return streams


def happen(streams: InStreams, state: StreamState, event: StreamEvent) -> None:
    index = 1 if state is StreamState.IN_ITEM else 0
    payload = {
        (StreamEvent.CHUNK, 0): b"\x00", (StreamEvent.FRAGMENT, 0): b"\x42a",
        (StreamEvent.CHUNK, 1): b"b", (StreamEvent.FRAGMENT, 1): b"",
    }.get((event, index), b"")  # fmt: skip
    if event is StreamEvent.START:
        streams.start(frame(_T.STREAM_START))
    elif event in (StreamEvent.CHUNK, StreamEvent.FRAGMENT):
        view = frame(_T.CHUNK, payload=payload, checksum=fnv1a_64(payload), chunk_index=index)
        streams.of(view).chunk(view)
    elif event is StreamEvent.STREAM_END:
        streams.of(frame(_T.STREAM_END)).end(frame(_T.STREAM_END))
    elif event is StreamEvent.END:
        streams.check_ended()


@pytest.mark.parametrize(("state", "event"), cells(STREAM_LIFE))
def test_a_stream_judges_every_event_in_every_state(state: StreamState, event: StreamEvent) -> None:
    streams = a_stream(state)
    cell = STREAM_LIFE[state][event]
    if cell.verdict is Verdict.VIOLATE:
        with pytest.raises(RemoteProtocolError) as caught:
            happen(streams, state, event)
        assert str(caught.value) == cell.why.format(type=event.partition(",")[0], stream="'s'")
        return
    happen(streams, state, event)
    ended = (cell.to or state) in (StreamState.ENDED, StreamState.NONE)
    if event is StreamEvent.ERR:
        return  # the request is over: its streams go with it
    if ended:
        streams.check_ended()
    else:
        with pytest.raises(RemoteProtocolError, match="is open"):
            streams.check_ended()


def test_what_is_nothing_to_a_stream() -> None:
    assert set(FrameType) - set(STREAM_EVENTS) == {
        _T.HELLO, _T.REQ, _T.LOG, _T.HEARTBEAT, _T.RELAY_NOTIFY, _T.RELAY_STATE, _T.CANCEL, _T.CREDIT, _T.CLOSE_STREAM,
        _T.POLICY,
    }  # fmt: skip
    assert {event for events in STREAM_EVENTS.values() for event in events} == set(StreamEvent)


# Windows


@pytest.mark.parametrize(("state", "event"), cells(SENDER_LIFE))
def test_a_sender_waits_without_credit(state: WindowState, event: WindowEvent) -> None:
    window = SendWindow(3)
    for _ in range(3 if state is WindowState.EMPTY else 2 if event is WindowEvent.LAST_CHUNK else 1):
        window.take()
    assert window.state is state
    cell = SENDER_LIFE[state][event]
    if event is WindowEvent.GRANT:
        window.grant(1)
    else:
        assert window.take() == (cell.verdict is Verdict.TAKE)
    assert window.state is (cell.to or state)


@pytest.mark.parametrize(("state", "event"), cells(RECEIVER_LIFE))
def test_a_receiver_refuses_a_chunk_without_credit(state: WindowState, event: WindowEvent) -> None:
    window = ReceiveWindow(3)
    for _ in range(3 if state is WindowState.EMPTY else 2 if event is WindowEvent.LAST_CHUNK else 1):
        window.arrive()
    assert window.state is state
    cell = RECEIVER_LIFE[state][event]
    if event is WindowEvent.GRANT:
        assert window.consume() == 1
    else:
        assert window.arrive() == (cell.verdict is Verdict.TAKE)
    assert window.state is (cell.to or state)


def test_a_grant_seen_on_its_way_covers_what_follows() -> None:
    conversation = Conversation(LinkKind.PIPE, state=LinkState.OPEN, limits=DEFAULT_LIMITS._replace(initial_credit=1))
    conversation.take(DOWN, frame(_T.REQ))
    conversation.take(UP, frame(_T.STREAM_START))
    conversation.take(UP, frame(_T.CHUNK))
    conversation.take(DOWN, frame(_T.CREDIT, meta={"credit_dir": RESPONSE}))
    conversation.take(UP, frame(_T.CHUNK, chunk_index=1))
    with pytest.raises(CreditViolationError):
        conversation.take(UP, frame(_T.CHUNK, chunk_index=2))
    assert len(conversation) == 0


def test_the_page_is_drawn_from_the_tables() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.wire.drawings"
