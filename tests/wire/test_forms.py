"""The quick ways of reading and writing frames give what the slow ones give: the same frame, bytes, or words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capdag.errors import AttributionClass, LocalProtocolError, RemoteProtocolError
from capdag.wire import (
    HOST_ABORT,
    REQUEST,
    RESPONSE,
    USER_CANCEL,
    CancelReason,
    Failure,
    Frame,
    FrameType,
    FrameView,
    LogRecord,
    cancel_frame,
    credit_frame,
    decode_frame,
    encode_frame,
    end_frame,
    err_frame,
    forms,
    inspect,
    log_frame,
    plans,
    view_of,
    with_routing_id,
)
from capdag.wire.cbor import encode_plain
from capdag.wire.chunks import forget_streams, read_known
from capdag.wire.forms import HEADS, forget_forms, read_form
from capdag.wire.plans import forget_plans, write_form
from tests.vectors import FOLDER, load

RID, OTHER = bytes(range(16)), bytes(range(16, 32))


def forget() -> None:
    forget_streams()
    forget_forms()
    forget_plans()


def known(body: bytes) -> bool:
    head = HEADS.get(body[:7])
    return isinstance(read_known(body) if head is None else read_form(body, head), FrameView)


def read(body: bytes) -> str:
    """All that can be seen of a body that was read, or why it is refused."""
    try:
        view = inspect(body)
    except RemoteProtocolError as error:
        return str(error)
    header = (view.body, view.type, view.id, view.seq, view.xid, view.stream_id, view.payload_size)
    return repr((header, sorted(view.fields.items()), view.meta, written(view.frame())))


def written(frame: Frame) -> bytes | str:
    try:
        return encode_frame(frame)
    except LocalProtocolError as error:
        return str(error)


def golden() -> list[bytes]:
    """Every body of the vectors and of the traces, and those that the fuzzer keeps."""
    found = [bytes.fromhex(row["hex"]) for name in ("valid", "invalid", "handshake") for row in load(f"wire/{name}")]
    for path in sorted((FOLDER / "traces").glob("[0-9]*.json")):
        found += [bytes.fromhex(frame["hex"]) for frame in json.loads(path.read_text())["frames"] if "hex" in frame]
    corpus = Path(__file__).parents[2] / "fuzz" / "corpus" / "frame"
    found += [path.read_bytes() for path in sorted(corpus.iterdir())]
    return list(dict.fromkeys(found))


GOLDEN = golden()


def test_golden_bodies_read_the_same_whether_their_form_is_known_or_not() -> None:
    forget()
    warm = [read(body) for body in GOLDEN for _ in range(2)][1::2]
    for body, seen in zip(GOLDEN, warm, strict=True):
        forget()
        assert read(body) == seen


_small = [body for body in GOLDEN if 25 < len(body) < 300]


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A golden body of which a few bytes are other ones, more, less, or those of another body."""
    body = bytearray(draw(st.sampled_from(_small)))
    for _ in range(draw(st.integers(1, 3))):
        at, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
        match draw(st.integers(0, 4)):
            case 0 if at < len(body):
                body[at] = draw(st.integers(0, 255))
            case 1:
                body[at:at] = draw(st.binary(min_size=1, max_size=9))
            case 2:
                del body[at : min(end, at + 9)]
            case 3:
                other = draw(st.sampled_from(_small))
                body[at:] = other[draw(st.integers(0, len(other))) :]
            case _:
                body[at:at] = body[at : min(end, at + 30)]
    return bytes(body)


@settings(max_examples=100)
@given(changed())
def test_changed_bodies_read_the_same_whether_forms_are_known_or_not(body: bytes) -> None:
    forget()
    cold = read(body)
    for good in _warming:
        inspect(good)
    assert read(body) == cold
    assert read(body) == cold


def _usual(number: int) -> list[Frame]:
    """One frame of each usual form; other numbers give others of the same forms."""
    rid, xid, stream, seq = bytes((number,)) * 16, 1 << number * 5 % 63, f"resp-{number}", number * 77
    wrong = Failure("X", AttributionClass.INPUT, f"é {number}")
    common: dict[str, Any] = {"stream_id": stream, "routing_id": xid}
    return [
        Frame(FrameType.REQ, rid, cap="cap:a", payload=b"", content_type="application/cbor", routing_id=xid),
        Frame(FrameType.REQ, rid, cap="cap:a", payload=b""),
        Frame(FrameType.STREAM_START, rid, seq, media_urn="media:a", is_sequence=True, **common),
        Frame(FrameType.STREAM_START, rid, seq, media_urn="media:a", is_sequence=False, unbounded=True, output="o",
              stream_id=stream),
        Frame(FrameType.STREAM_START, rid, seq, meta={"a": 1, "b": b""}, media_urn="media:a", **common),
        Frame(FrameType.STREAM_END, rid, seq, chunk_count=4, **common),
        Frame(FrameType.STREAM_END, rid, seq, chunk_count=4, stream_id=stream),
        Frame(FrameType.CHUNK, rid, seq, payload=b"\x00", chunk_index=number, checksum=2**60 + number, **common),
        Frame(FrameType.CLOSE_STREAM, rid, **common),
        Frame(FrameType.CLOSE_STREAM, rid, stream_id=stream),
        Frame(FrameType.END, rid, seq, eof=True, routing_id=xid),
        end_frame(rid, xid=xid, seq=seq),
        end_frame(rid, xid=xid, seq=seq, message="done"),
        credit_frame(rid, stream, 16, REQUEST, xid=xid),
        credit_frame(rid, stream, 16, RESPONSE),
        log_frame(rid, LogRecord("progress", f"m {number}", number / 3), xid=xid, seq=seq),
        log_frame(rid, LogRecord("info", f"m {number}", attribution=AttributionClass.USER, extra={"n": 1}), seq=seq),
        err_frame(rid, wrong, xid=xid, seq=seq),
        err_frame(rid, wrong, seq=seq),
        cancel_frame(rid, USER_CANCEL, xid=xid),
        cancel_frame(rid, CancelReason(message=f"m {number}"), force_kill=True),
        Frame(FrameType.HEARTBEAT, rid),
    ]  # fmt: skip


def _tricky(number: int) -> list[Frame]:
    """Frames in which what stands before a hole stands elsewhere too, and holes that others of the type have not."""
    rid, odd, xid = bytes((number,)) * 16, f"a\x0b\x61{number}", 90 + number
    text = f"gmessage\x61{number}"
    return [
        Frame(FrameType.STREAM_END, rid, stream_id=odd),
        Frame(FrameType.STREAM_END, rid, stream_id=f"a\r{chr(number)}"),
        Frame(FrameType.REQ, rid, cap=f"a\r{chr(number)}", payload=b""),
        Frame(FrameType.REQ, rid, cap=odd, payload=b"", routing_id=xid),
        Frame(FrameType.REQ, rid, cap="a", payload=b"\x0b\x61" + b"%d" % number, routing_id=b"\r" * 16),
        Frame(FrameType.END, rid, routing_id=xid, force_kill=number > 1),
        Frame(FrameType.LOG, rid, stream_id="s", routing_id=xid, meta={"message": str(number)}),
        Frame(FrameType.LOG, rid, stream_id="s", routing_id=xid, meta={"message": text}),
        Frame(FrameType.LOG, rid, routing_id=xid, meta={"message": str(number), "share": number / 3}),
        Frame(FrameType.ERR, rid, routing_id=xid, meta={"message": "a", "code": text}),
        Frame(FrameType.ERR, rid, meta={"message": "a", "b": {"message": str(number), "c": [1]}}),
        Frame(FrameType.HEARTBEAT, rid, meta={"a": [{}], "b": {}}),
        Frame(FrameType.CHUNK, rid, payload=b"\x00", stream_id="s", chunk_index=0, checksum=2**60),
        Frame(FrameType.CHUNK, rid, payload=b"\x00", stream_id="s", chunk_index=1, checksum=number),
    ]  # fmt: skip


def _bodies(number: int) -> list[bytes]:
    views = [view_of(frame) for frame in (*_usual(number), *_tricky(number))]
    return [view.body for view in (*views, *(with_routing_id(view, 3) for view in views if view.xid is None))]


_warming = [*_bodies(1), *_bodies(2), *_bodies(3)]


def _damaged() -> list[bytes]:
    """Every start of good bodies, and these with one byte more, or another one that means something."""
    bodies = _bodies(3)
    found = [body[:end] for body in bodies for end in range(len(body))]
    found += [body + more for body in bodies for more in (b"\x00", b"\x0d\x01", b"\x0b\x60")]
    for body in bodies:
        for at in range(len(body)):
            others = {0x0B, 0x0D, (body[at] + 1) % 256, (body[at] - 1) % 256}
            found += [body[:at] + bytes((other,)) + body[at + 1 :] for other in others]
    return found


def test_damaged_bodies_read_the_same_whether_their_form_is_known_or_not() -> None:
    cold = []
    for body in (damaged := _damaged()):
        forget()
        cold.append(read(body))
    forget()
    for body in _warming:
        inspect(body)
    for body, wanted in zip(damaged, cold, strict=True):
        assert read(body) == wanted


def test_good_bodies_read_the_same_after_others_of_their_kind() -> None:
    forget()
    for body in _warming * 2:
        seen = read(body)
        forget()
        cold = read(body)
        assert seen == cold
        for other in _warming:
            inspect(other)


def test_frames_of_every_usual_form_are_known_at_second_sight() -> None:
    forget()
    for first, second in zip(_usual(1), _usual(2), strict=True):
        inspect(encode_frame(first))
        body = encode_frame(second)
        if second.frame_type is not FrameType.CHUNK:  # these are known by stream
            assert known(body), second
            assert write_form(second.shared_fields()) == body
        view = inspect(body)
        assert view.frame() == second
        assert list(view.fields) == list(second.fields())
        assert (view.id, view.seq, view.xid, view.stream_id) == (
            second.id, second.seq, second.routing_id, second.stream_id,
        )  # fmt: skip


def test_a_frame_that_a_router_spliced_is_known_as_well() -> None:
    forget()
    for frame in _usual(3):
        frame.routing_id = None
        for xid in (7, 70_000):
            spliced = with_routing_id(view_of(frame), xid)
            assert inspect(spliced.body).fields == spliced.fields == {**frame.fields(), 13: xid}
        assert known(spliced.body), frame
        assert with_routing_id(inspect(encode_frame(frame)), 9).fields == {**frame.fields(), 13: 9}


@pytest.mark.parametrize("number", range(len(_usual(1) + _tricky(1))))
def test_what_becomes_of_one_frame_is_nothing_to_the_next(number: int) -> None:
    forget()
    frame = (_usual(1) + _tricky(1))[number]
    body = encode_frame(frame)
    for _ in range(3):
        meta = inspect(body).fields.get(5)
        if meta is not None:
            poison(meta)
        assert decode_frame(body) == frame


def poison(value: Any) -> None:
    """Change every container in there."""
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            poison(inner)
    value.update(poison=1) if isinstance(value, dict) else value.append(1)


@pytest.mark.parametrize("meta", [end_frame(1).meta, credit_frame(1, "s", 1, REQUEST).meta,
                                  cancel_frame(1, HOST_ABORT).meta])  # fmt: skip
def test_a_shared_meta_cannot_be_changed(meta: Any) -> None:
    changes: Iterable[Callable[[], object]] = (
        lambda: meta.update(a=1), lambda: meta.clear(), lambda: meta.pop("a"), lambda: meta.setdefault("a", 1),
        lambda: meta.__setitem__("a", 1), lambda: meta.__delitem__("a"), meta.popitem, lambda: meta.__ior__({}),
    )  # fmt: skip
    for change in changes:
        with pytest.raises(TypeError, match="give the frame a dict of its own"):
            change()


class Word(StrEnum):
    MEDIA = "media:a"


class Other(str):
    """A text of another type, which keys may not be."""

    __slots__ = ()


_AS_GOOD_AS = [1, True, 1.0, 0, False, 0.0, -0.0, "media:a", Word.MEDIA, b"", bytearray(), None, -1, 2**64, "\ud800",
               b"\x00" * 15, "é" * 9, [], {}, {"n": 1}, {"n": True}, {"n": 1.0}, {"n": 0.0}, {"n": -0.0}, {1: 1},
               {"n": [-0.0]}, {Word.MEDIA: 1}, {"n": 2**64}, {"n": bytearray()}, {"n": "\ud800"}]  # fmt: skip


@pytest.mark.parametrize("number", range(len(_usual(1))))
def test_frames_are_written_or_refused_the_same_whether_their_form_is_known_or_not(number: int) -> None:
    fields = _usual(1)[number].fields()
    values = [*_AS_GOOD_AS, *fields.values()]
    several = [fields, *({**fields, key: value} for key in (*fields, 14, 22, -1) for value in values if key != 1)]
    cold = []
    for one in several:
        forget()
        cold.append(written(Frame.of(one)))
    forget()
    for _ in range(2):
        for one, wanted in chain(zip(several, cold, strict=True), zip(several[::-1], cold[::-1], strict=True)):
            assert written(Frame.of(one)) == wanted


_TOLD = [
    log_frame(RID, LogRecord("progress", "m", 0.5)),
    log_frame(RID, LogRecord("info", "m")),
    err_frame(RID, Failure("X", AttributionClass.INPUT, "m")),
    cancel_frame(RID, CancelReason(message="m")),
]
_SAID = [*_AS_GOOD_AS, 0.5, 1.5, -0.5, 5e-324, float("nan"), float("inf"), float("-inf"), "m" * 23, "m" * 24, "é" * 300]


@pytest.mark.parametrize("frame", _TOLD)
def test_what_is_told_is_written_or_refused_the_same_whether_its_form_is_known_or_not(frame: Frame) -> None:
    meta = dict(frame.meta or {})
    metas = [meta, *({**meta, key: value} for key in (*meta, "detail") for value in _SAID)]
    metas += [{Other(key) if key == odd else key: value for key, value in meta.items()} for odd in meta]
    metas += [dict(reversed(meta.items())), *({key: meta[key]} for key in meta)]
    several = [Frame(frame.frame_type, RID, meta=told) for told in metas]
    cold = []
    for one in several:
        forget()
        cold.append(written(one))
    forget()
    for _ in range(2):
        assert [written(one) for one in several] == cold
    assert any(isinstance(one, str) for one in cold)


def test_numbers_whose_bytes_are_those_of_keys_are_read() -> None:
    forget()
    for number in (13, 0x0D0D, 0x0D000000, 11, 0x0B0D):
        for frame in _usual(1):
            for name in ("routing_id", "seq", "chunk_count", "credit"):
                if getattr(frame, name):
                    setattr(frame, name, number)
                    assert decode_frame(encode_frame(frame)) == frame


@pytest.mark.parametrize("number", [11, 13, 0x0C0B, 0x0C0D])
def test_a_number_that_ends_like_a_key_keeps_no_form_from_being_known(number: int) -> None:
    forget()
    for frame in _usual(1):
        frame.seq, frame.routing_id = number, number and frame.routing_id
        frame.chunk_count, frame.credit = frame.chunk_count and number, frame.credit and number
        inspect(body := encode_frame(frame))
        assert known(body), frame


def test_forms_that_strangers_invent_are_not_all_kept() -> None:
    forget()
    for number in range(1200):
        frame = Frame(FrameType.REQ, RID, cap=f"cap:{number}", payload=b"")
        inspect(encode_frame(frame))
    optional = dict.fromkeys(("content_type", "media_urn", "cap", "stream_id"), "a")
    optional |= dict.fromkeys(("eof", "is_sequence", "force_kill", "unbounded"), True) | {"len": 1, "offset": 1}
    for number in range(1024):
        chosen: Any = {name: value for at, (name, value) in enumerate(optional.items()) if number >> at & 1}
        frame = Frame(FrameType.END, RID, **chosen)
        assert decode_frame(encode_frame(frame)) == frame
    assert 0 < len(forms._forms) <= 512
    assert 0 < len(plans._writers) <= 512
    long = encode_frame(Frame(FrameType.REQ, RID, cap="c" * 600, payload=b""))
    assert inspect(long).fields == inspect(long).fields
    assert not known(long)


@pytest.mark.parametrize("deep", [14, 15])
def test_meta_is_nested_as_deep_as_a_reader_takes_it(deep: int) -> None:
    value: Any = 1
    for _ in range(deep):
        value = [value]
    frame = Frame(FrameType.LOG, RID, meta={"a": value})
    if deep == 14:
        assert decode_frame(encode_frame(frame)) == frame
    else:
        with pytest.raises(LocalProtocolError, match="nested at most 14 deep"):
            encode_frame(frame)
        with pytest.raises(RemoteProtocolError):
            inspect(encode_plain(frame.fields()))
