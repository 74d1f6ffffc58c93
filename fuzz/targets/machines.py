"""Frames of any order through the machines of a link, its requests, their streams and windows.

Every frame gets a verdict or a RemoteProtocolError; a link that is over stays over; there are never more requests than
the table takes; a request goes only by its terminal or a broken rule, and then whole; every frame that goes nowhere is
counted once; after every request's terminal nothing is left.

An input is a byte that chooses the link and where it stands, one that chooses limits, and then four bytes a frame (see
`frame_of`): so the fuzzer spends its time on orders of frames and not on CBOR, which another target has.
"""

# ruff: noqa: PT017 - these are no tests of pytest, whose `raises` would hide what else comes

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from capdag.errors import LocalProtocolError, RemoteProtocolError
from capdag.wire import (
    DEFAULT_LIMITS,
    FLOW_TYPES,
    IDENTITY_CAP,
    Frame,
    FrameType,
    PoolState,
    ReorderBuffer,
    SeqAssigner,
    flow_of,
    fnv1a_64,
    hello_frame,
    inspect,
    view_of,
)
from capdag.wire.conversation import Conversation, LinkKind
from capdag.wire.life import Verdict
from capdag.wire.link_life import Direction, LinkState

from ..vectors import traces

_TO_FIRST = {"host->cartridge": LinkKind.PIPE, "switch->host": LinkKind.RELAY, "slave->host": LinkKind.RELAY}
_TO_SECOND = {"cartridge->host": LinkKind.PIPE, "host->switch": LinkKind.RELAY}

KINDS = tuple(LinkKind)
STATES = (LinkState.SILENT, LinkState.OPEN)
TYPES = tuple(FrameType)
PAYLOADS = (b"\x00", b"\x42a", b"b", b"\x41a", b"", b"\x82\x00", b"\x00\x00", b"\xff")
"""Whole values, the two halves of one, nothing, an open array, two values, no CBOR."""

RIDS = (0, *(bytes((number,)) * 16 for number in (1, 2, 3)))

TABLE_LIMIT = 8
MAX_ITEM = 16

_HOST = hello_frame(DEFAULT_LIMITS).meta or {}
_CARTRIDGE = hello_frame(DEFAULT_LIMITS, manifest=b"{}", pools={"all": PoolState()}).meta or {}
_METAS: dict[FrameType, tuple[dict[str, Any] | None, ...]] = {
    FrameType.HELLO: (_HOST, _CARTRIDGE, {}, {**_CARTRIDGE, "initial_credit": 0}),
    FrameType.RELAY_NOTIFY: ({"max_frame": 1000, "max_chunk": 100, "manifest": b"{}"}, {}, {"max_frame": 0}, None),
    FrameType.END: ({"exit_code": 0}, None, {"exit_code": 1}, {"exit_code": True}),
    FrameType.ERR: ({"code": "X", "message": "m", "attribution_class": "input"}, None, {}, {"code": 1}),
    FrameType.LOG: ({"level": "info", "message": "m", "attribution_class": "user"}, None, {}, {"level": 1}),
    FrameType.CREDIT: ({"credit_dir": "request"}, {"credit_dir": "response"}, None, {"credit_dir": 7}),
    FrameType.POLICY: ({"network": "full"}, {"network": "offline"}, {"network": "no_telemetry"}, {"network": "full"}),
}
_OF_STREAMS = frozenset(
    {FrameType.STREAM_START, FrameType.CHUNK, FrameType.STREAM_END, FrameType.CREDIT, FrameType.CLOSE_STREAM}
)


def frame_of(record: bytes) -> tuple[int, Frame]:
    """Make a frame of four bytes: sender and type; RID, XID and stream; what the type has; a payload or a count."""
    who, ids, what, how = record
    kind = TYPES[(who & 0x7F) % len(TYPES)]
    frame = Frame(kind, RIDS[ids & 3], routing_id=(ids >> 2 & 3) or None)
    metas = _METAS.get(kind)
    frame.meta = metas[what >> 6] if metas is not None else None
    stream = f"s{ids >> 4 & 3}" if ids < 0xC0 else None
    if kind in (
        FrameType.STREAM_START,
        FrameType.CHUNK,
        FrameType.STREAM_END,
        FrameType.CREDIT,
        FrameType.CLOSE_STREAM,
    ):
        frame.stream_id = stream
    if kind is FrameType.REQ:
        frame.cap = IDENTITY_CAP if what & 1 else "cap:x;in=media:a;out=media:b"
    elif kind is FrameType.STREAM_START:
        frame.media_urn = None if what & 8 else "media:a"
        frame.is_sequence, frame.unbounded = bool(what & 1), bool(what & 2)
    elif kind is FrameType.CHUNK:
        frame.payload = PAYLOADS[how & 7]
        frame.chunk_index = what & 0x3F
        frame.checksum = 0 if what & 0x40 else fnv1a_64(frame.payload)
    elif kind is FrameType.STREAM_END:
        frame.chunk_count = None if what & 0x80 else what & 0x3F
    elif kind is FrameType.CREDIT:
        frame.credit = how
    return who >> 7, frame


def read(data: bytes) -> tuple[Conversation, tuple[Direction, ...], Iterator[tuple[int, Frame]]]:
    """Take an input apart: a conversation, its two directions, and the frames."""
    choice, small = (*data[:2], 0, 0)[:2]
    kind = KINDS[choice & 1]
    limits = DEFAULT_LIMITS._replace(initial_credit=1 + (small & 3))
    state = STATES[choice >> 1 & 1]
    conversation = Conversation(kind, limits=limits, state=state, table_limit=TABLE_LIMIT, max_item=MAX_ITEM)
    records = (data[at : at + 4] for at in range(2, len(data) - 3, 4))
    return conversation, kind.value, map(frame_of, records)


def seeds() -> Iterator[bytes]:
    """Every channel of every trace in the four-byte form of `machines`, with a start that fits it."""
    for frames in traces():
        channels = dict.fromkeys(frame["chan"] for frame in frames)
        for channel in channels:
            seen = [frame for frame in frames if frame["chan"] == channel]
            directions = _TO_FIRST | _TO_SECOND
            kind = KINDS.index(directions[seen[0]["dir"]])
            greets = seen[0]["fields"]["type"] in ("HELLO", "RELAY_NOTIFY", "POLICY")
            numbers: dict[tuple[str, object], int] = {}
            records = b"".join(_record(frame, numbers) for frame in seen)
            yield bytes((kind | (0 if greets else 2), 3)) + records


def _record(frame: dict[str, Any], numbers: dict[tuple[str, object], int]) -> bytes:
    fields = frame["fields"]
    kind = FrameType(fields["frame_type"])

    def number(what: str, value: object) -> int:
        return numbers.setdefault((what, value), sum(one == what for one, _ in numbers)) & 3

    who = TYPES.index(kind) | (0x80 if frame["dir"] in _TO_SECOND else 0)
    xid = fields.get("routing_id")
    stream = fields.get("stream_id")
    ids = number("rid", fields["id"]) | (0 if xid is None else 1 + number("xid", xid) % 3) << 2
    ids |= 0xC0 if stream is None else number("stream", (fields["id"], stream)) << 4
    what, how = 0, 0
    meta = fields.get("meta") or {}
    if kind is FrameType.HELLO:
        what = 0x40 if "manifest" in meta else 0
    elif kind is FrameType.REQ:
        what = fields.get("cap") == "cap:effect=none"
    elif kind is FrameType.CHUNK:
        what = fields["chunk_index"] & 0x3F
    elif kind is FrameType.STREAM_START:
        what = bool(fields.get("is_sequence")) | bool(fields.get("unbounded")) << 1
    elif kind is FrameType.STREAM_END:
        what = 0x80 if fields.get("chunk_count") is None else fields["chunk_count"] & 0x3F
    elif kind is FrameType.CREDIT:
        what, how = 0x40 if meta.get("credit_dir") == "response" else 0, fields["credit"] & 0xFF
    elif kind is FrameType.END:
        what = 0x40 if fields.get("meta") is None else 0
    return bytes((who, ids, what, how))


def check(data: bytes) -> None:
    """See the module."""
    conversation, directions, sent = read(data)
    numbers, order = _Numbers(), Counter[Verdict]()
    for who, frame in sent:
        direction, live, over = directions[who], len(conversation), _over(conversation, directions[who])
        numbers.check(frame)
        try:
            verdict = conversation.take(direction, inspect(view_of(frame).body))
        except LocalProtocolError:
            continue  # no frame at all
        except RemoteProtocolError as error:
            assert str(error)
            assert _over(conversation, direction) or len(conversation) == live - 1
            continue
        assert not over
        order[verdict] += 1
        ends = verdict is Verdict.TAKE and frame.frame_type in (FrameType.END, FrameType.ERR)
        begins = verdict is Verdict.TAKE and frame.frame_type is FrameType.REQ
        assert len(conversation) - live in ((1,) if begins else (0, -1) if ends else (0,))
        assert len(conversation) <= TABLE_LIMIT
    counted = conversation.counts.drops.total() + conversation.counts.stragglers.total()
    assert counted == order[Verdict.COUNT]
    if all(conversation.state(direction) in (LinkState.GREETED, LinkState.OPEN) for direction in directions):
        _end_everything(conversation, directions)
        assert len(conversation) == 0


def _over(conversation: Conversation, direction: Direction) -> bool:
    return conversation.state(direction) is LinkState.OVER


def _end_everything(conversation: Conversation, directions: tuple[Direction, ...]) -> None:
    """Both sides send ERR for every id: for a call served where it was made once for each of its halves."""
    for direction in directions * 2:
        for rid in RIDS:
            for xid in (None, 1, 2, 3):
                try:
                    conversation.take(direction, view_of(Frame(FrameType.ERR, rid, routing_id=xid)))
                except RemoteProtocolError:
                    return


class _Numbers:
    """seq of the same frames: dense from 0 in each flow until its terminal, and restored by a reorder buffer."""

    def __init__(self) -> None:
        self._assigner = SeqAssigner()
        self._buffer = ReorderBuffer(4)
        self._next: Counter[Any] = Counter()
        self._ended: set[Any] = set()

    def check(self, frame: Frame) -> None:
        flow = flow_of(frame)
        sent = self._assigner.assign(frame)
        if frame.frame_type not in FLOW_TYPES:
            assert sent
            assert frame.seq == 0
            return
        assert sent == (flow not in self._ended)
        if not sent:
            return
        assert frame.seq == self._next[flow]
        self._next[flow] += 1
        assert self._buffer.accept(frame) == [frame]
        if frame.frame_type in (FrameType.END, FrameType.ERR):
            self._ended.add(flow)
