"""Frames as a link delivers them: one by one, or a run of CHUNKs as a block (protocol-spec/wire.md, Streams).

Nearly all frames are CHUNKs, and many come in one read. Those of one stream differ in seq, payload, chunk_index and
checksum: what lies around these places is held against what is known of the stream byte by byte, as `chunks` does, but
without a view of each. Where their sizes are equal as well, a whole column of bytes is compared at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from capdag.errors import RemoteProtocolError

from .chunks import known_streams
from .codec import inspect
from .frame import FrameType, MessageId, show_id
from .framing import PREFIX_SIZE, FrameSplitter, pack, prefix
from .limits import DEFAULT_LIMITS
from .view import WIDTHS, ChunkPlaces, FrameView, frame_view

_SHOWN = 64
"""Bytes of a bad frame that its error quotes."""

_PREFIX = 24
"""Bytes of a plain CHUNK up to the value of seq."""

_LARGE = 16_384
"""Bytes of a body from which a write of its own costs less than a copy."""

_READ = 65_536
"""Bytes that links read at once. Of longer frames the rest is to be read by itself, in as many reads as it takes: in
larger ones sender and reader of a pipe get into each other's way."""

_TYPE, _CHUNK = 8, bytes((FrameType.CHUNK,))
"""Where the type of a plain frame is, behind its length, and that of a CHUNK."""

_head = Struct(">I24sB").unpack_from
"""Length, `_PREFIX` bytes, first byte of seq."""

_HEAD_SIZE = 29

_CHECKSUM = b"\x10\x1b"
"""Key 16 and the head of a checksum."""

_SPAN = 256
"""Frames whose columns are compared at once: in so many the last byte of seq takes each value once."""

_WORTH = 16
"""Frames of one size in a row from which columns pay."""

_SAME = [bytes((value,)) * _SPAN for value in range(256)]
_RISING = bytes(range(256))


class ChunkRun:
    """Consecutive CHUNKs of one stream, checked, as they lie in `pieces`, one after the other, with their prefixes.

    `last_seq` is the highest seq of them, `largest_body` and `largest_payload` the most bytes that one has.
    """

    __slots__ = ("_places", "count", "id", "largest_body", "largest_payload", "last_seq", "pieces", "stream_id", "xid")

    type = FrameType.CHUNK

    def __init__(
        self, pieces: Sequence[bytes], count: int, rid: MessageId, xid: MessageId | None, stream_id: str | None,
        last_seq: int, largest_body: int, largest_payload: int, places: ChunkPlaces,
    ) -> None:  # fmt: skip
        self.pieces = pieces
        self.count = count
        self.id = rid
        self.xid = xid
        self.stream_id = stream_id
        self.last_seq = last_seq
        self.largest_body = largest_body
        self.largest_payload = largest_payload
        self._places = places

    def views(self) -> list[FrameView]:
        """Return the frames one by one."""
        block = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        if self.count == 1:
            body = block[PREFIX_SIZE:]
            return [frame_view(body, self.type, self.id, self.last_seq, self.xid, self.stream_id, None, self._places)]
        return list(map(inspect, FrameSplitter(self.largest_body).feed(block)))

    def __repr__(self) -> str:
        return f"<{self.count} CHUNKs rid={show_id(self.id)} xid={show_id(self.xid)} {sum(map(len, self.pieces))} B>"


Parcel = FrameView | ChunkRun
"""What a link carries."""


def single_frames(parcels: Sequence[Parcel]) -> list[FrameView]:
    """Return the frames of parcels one by one."""
    frames: list[FrameView] = []
    for parcel in parcels:
        if isinstance(parcel, ChunkRun):
            frames += parcel.views()
        else:
            frames.append(parcel)
    return frames


def write_parcels(parcels: Sequence[Parcel], max_frame: int, pieces: list[bytes]) -> None:
    """Append the bytes of parcels to `pieces`: small frames joined, large ones as they are.

    Raises LocalProtocolError for a body over `max_frame`; what came before it has been appended.
    """
    small: list[bytes] = []
    try:
        for parcel in parcels:
            if isinstance(parcel, ChunkRun):
                if parcel.largest_body > max_frame:
                    small += (pack(view, max_frame) for view in parcel.views())
                    continue
                told = parcel.pieces
            else:
                told = (prefix(parcel, max_frame), parcel.body)
            for data in told:
                if len(data) < _LARGE:
                    small.append(data)
                    continue
                if small:
                    pieces.append(b"".join(small))
                    small.clear()
                pieces.append(data)
    finally:
        if small:
            pieces.append(b"".join(small))


class BlockReader:
    """Cuts a byte stream into checked frames, and runs of CHUNKs if `runs`. Memory: that of `FrameSplitter`.

    `missing`: how much the next read is best to ask for, if a large frame is being read: its rest, which then need not
    be cut out of what was read. Else 0.
    """

    def __init__(self, max_frame: int = DEFAULT_LIMITS.max_frame, *, runs: bool = False) -> None:
        self.runs = runs
        self.missing = 0
        self._splitter = FrameSplitter(max_frame)

    def set_max_frame(self, max_frame: int) -> None:
        """Refuse longer frames from here on."""
        self._splitter.max_frame = max_frame

    def feed(self, data: bytes, parcels: list[Parcel]) -> None:
        """Take the bytes of one read and append what is now whole.

        Raises RemoteProtocolError, after the good frames before it, for bytes that are no frame, naming the stream
        offset and the first bytes.
        """
        splitter = self._splitter
        splitter.take(data)
        self.missing = 0
        while splitter.position < len(splitter.data) or splitter.size:
            run = None
            if self.runs:
                run = self._large() if splitter.size else self._run()
            if run is not None:
                parcels.append(run)
                continue
            body = splitter.next()
            if body is None:
                if splitter.size > _READ:
                    self.missing = min(splitter.missing, _READ)
                return
            parcels.append(self._inspect(body))

    def _inspect(self, body: bytes) -> FrameView:
        try:
            return inspect(body)
        except RemoteProtocolError as error:
            where = f"bad frame at stream offset {self._splitter.offset}"
            raise RemoteProtocolError(f"{where}: {error}; its body begins {body[:_SHOWN]!r}") from None

    def eof(self) -> None:
        """Check a stream that ended: raises RemoteProtocolError if it ended inside a frame."""
        self._splitter.eof()

    def _run(self) -> ChunkRun | None:
        """Return the CHUNKs of a known stream that are next, which are good if they equal good ones where it counts."""
        splitter = self._splitter
        data, begin = splitter.data, splitter.position
        if data[begin + _TYPE : begin + _TYPE + 1] != _CHUNK:
            return None
        start = data[begin + PREFIX_SIZE : begin + _HEAD_SIZE - 1]
        for tail, rest, rid, xid, stream_id in known_streams(start, ()):
            count, end, seq, body, largest, places = _scan(data, begin, (start, tail, rest), splitter.max_frame)
            if count:
                splitter.position, splitter.offset = end, splitter.offset + end - begin
                return ChunkRun((data[begin:end],), count, rid, xid, stream_id, seq, body, largest, places)
        return None

    def _large(self) -> ChunkRun | None:
        """Return a CHUNK of a known stream that came in parts, as it came: it may be as good as any in `_run`."""
        splitter = self._splitter
        parts, body = splitter.parts, splitter.size
        if splitter.missing or len(parts) < 2 or sum(map(len, parts)) != body:
            return None
        for tail, rest, rid, xid, stream_id in known_streams(parts[0][:_PREFIX], ()):
            found = _measure(parts, body, tail, rest)
            if found is not None:
                seq, places = found
                pieces = (body.to_bytes(PREFIX_SIZE, "big"), *parts)
                splitter.end_parts()
                return ChunkRun(pieces, 1, rid, xid, stream_id, seq, body, places[1], places)
        return None


def _measure(parts: Sequence[bytes], body: int, tail: bytes, rest: bytes) -> tuple[int, ChunkPlaces] | None:
    """Return seq and places of a CHUNK in parts if it is good: its head in the first, all behind its payload in the
    last."""
    first, last = parts[0], parts[-1]
    before = body - len(last)
    try:
        seq, place = _number(first, _PREFIX + 1, first[_PREFIX])
        if first[place] != 6:
            return None
        size, payload = _number(first, place + 2, first[place + 1] - 0x40)
        index = payload + size + len(tail) - before
        if payload > len(first) or index < len(tail) or not last.startswith(tail, index - len(tail)):
            return None
        checksum = index + 1 if last[index] < 0x18 else index + 1 + WIDTHS[last[index]]
        whole = checksum + 10 + len(rest) == len(last)
    except (IndexError, KeyError):
        return None
    if not whole or not last.startswith(_CHECKSUM, checksum) or not last.endswith(rest):
        return None
    return seq, (payload, size, index + before)


def _scan(
    data: bytes, at: int, same: tuple[bytes, bytes, bytes], max_frame: int
) -> tuple[int, int, int, int, int, ChunkPlaces]:
    """Go over whole CHUNKs that have `same` at their start, behind their payload and behind their checksum.

    Returns how many, where they end, the highest seq, the bytes of the largest body and payload, and the places of the
    first frame, if there is no other. One function, because each call would cost a tenth of what a frame does.
    """
    count = last_seq = largest_body = largest = due = before = 0
    places = (0, 0, 0)
    first = at + PREFIX_SIZE
    start, tail, rest = same
    length, has, after_tail, after_checksum = len(data), data.startswith, len(tail), 10 + len(rest)
    try:
        while at + _HEAD_SIZE < length:
            body, head, seq = _head(data, at)
            end = at + PREFIX_SIZE + body
            if head != start or end > length or body > max_frame:
                break
            place = at + _HEAD_SIZE
            if seq > 0x17:
                seq, place = _number(data, place, seq)
            if data[place] != 6:
                break
            size, payload = data[place + 1] - 0x40, place + 2
            if not 0 <= size < 0x18:
                size, payload = _number(data, payload, size)
            index = payload + size + after_tail
            if not has(tail, payload + size):
                break
            checksum = index + 1 if data[index] < 0x18 else index + 1 + WIDTHS[data[index]]
            if not has(_CHECKSUM, checksum) or end != checksum + after_checksum or not has(rest, checksum + 10):
                break
            if not count:
                places = (payload - first, size, index - first)
            alike = 1
            if body == before and count >= due and place > at + _HEAD_SIZE:
                alike = _alike(data, at, end, (place - 1, payload, payload + size, index + 1, checksum))
                due = count if alike >= _WORTH else count + _SPAN
            count, at, before = count + alike, at + alike * (end - at), body
            seq += alike - 1
            last_seq = seq if seq > last_seq else last_seq
            largest_body = body if body > largest_body else largest_body
            largest = size if size > largest else largest
    except (IndexError, KeyError):
        pass  # it ends too early, or holds something else: `inspect` will say
    return count, at, last_seq, largest_body, largest, places


def _number(data: bytes, at: int, head: int) -> tuple[int, int]:
    """Return the integer after its head, and where it ends. Raises KeyError for what is no head of a longer one."""
    if head == 0x18:
        return data[at], at + 1
    if 0 <= head < 0x18:
        return head, at
    end = at + WIDTHS[head]
    return int.from_bytes(data[at:end], "big"), end


def _alike(data: bytes, at: int, end: int, places: tuple[int, int, int, int, int]) -> int:
    """Return how many frames from the good one at `at` are as long as it and equal to it around `places`: the last
    byte of seq, which goes up by one; payload; chunk_index; checksum."""
    seq, payload, tail, index, checksum = (place - at for place in places)
    stride = end - at
    if not data.startswith(data[at : at + seq], at + _WORTH * stride):
        return 1
    count = min(_SPAN - data[at + seq], (len(data) - at) // stride)
    rest = range(checksum + 10, stride)
    for place in (*range(seq), *range(seq + 1, payload), *range(tail, index), checksum, checksum + 1, *rest):
        column = data[at + place : at + count * stride : stride]
        if not _SAME[column[0]].startswith(column):
            count = len(column) - len(column.lstrip(column[:1]))
    column = data[at + seq : at + count * stride : stride]
    return count if _RISING.startswith(column, column[0]) else 1
