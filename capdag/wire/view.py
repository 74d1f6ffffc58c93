"""A checked frame as routers and links see it (protocol-spec/wire.md, Routing)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from .frame import Frame, FrameType, MessageId, show_id
from .rules import read_fields

WIDTHS = {0x18: 1, 0x19: 2, 0x1A: 4, 0x1B: 8}
"""First byte of an unsigned integer of more than one byte, and how many follow it."""


ChunkPlaces = tuple[int, int, int]
"""Where in the body of a CHUNK its payload begins, how long it is, and where its chunk_index begins. The checksum
follows: key 16, `1b`, 8 bytes."""

MOST_KEPT = 4096
"""Bytes of a body without its payload, from which a view does not keep what they decode to. That may take many times
as much memory, and views wait in queues that go by the sizes of bodies."""

Told = tuple[str | None, int]
"""The message of a meta, and where in the body the float of its progress begins; 0 without."""

_checksum_at, _progress_at = struct.Struct(">Q").unpack_from, struct.Struct(">d").unpack_from


class FrameView:
    """A checked header over the original bytes: what routers look at and links carry.

    `body` is the encoded frame without its length prefix. `fields`, the map of integer keys, is made when it is first
    asked for where `places` are known instead, or a frame that is `like` this one but for its header and what its meta
    has `told`; and whenever it is asked for where it would take much memory.
    """

    __slots__ = ("_fields", "_like", "_told", "body", "id", "places", "seq", "stream_id", "type", "xid")

    body: bytes
    type: FrameType
    id: MessageId
    seq: int
    xid: MessageId | None
    stream_id: str | None
    places: ChunkPlaces | None
    _fields: dict[int, Any] | None
    _like: dict[int, Any] | None
    _told: Told | None

    @property
    def fields(self) -> dict[int, Any]:
        """The decoded map. Not to be changed."""
        if self._fields is None:
            if self.places is not None:
                self._fields = self._read_chunk(self.places)
            elif self._like is not None:
                self._fields = self._fill(self._like)
            else:
                return read_fields(self.body)
        return self._fields

    def _fill(self, like: dict[int, Any]) -> dict[int, Any]:
        fields = like.copy()
        fields[2] = self.id
        fields[3] = self.seq
        if self.stream_id is not None:
            fields[11] = self.stream_id
        if self.xid is not None:
            fields[13] = self.xid
        if 5 in fields:
            fields[5] = meta = fields[5].copy()  # shared with other frames
            if self._told is not None:
                meta["message"], progress = self._told
                if progress:
                    (meta["progress"],) = _progress_at(self.body, progress)
        return fields

    def _read_chunk(self, places: ChunkPlaces) -> dict[int, Any]:
        (payload, size, at), body = places, self.body
        index, end = body[at], at + 3
        if index > 0x17:
            end += WIDTHS[index]
            index = int.from_bytes(body[at + 1 : end - 2], "big")
        data, (checksum,) = body[payload : payload + size], _checksum_at(body, end)
        if self.xid is None:
            return {0: 6, 1: 3, 2: self.id, 3: self.seq, 6: data, 11: self.stream_id, 14: index, 16: checksum}
        return {
            0: 6, 1: 3, 2: self.id, 3: self.seq, 6: data, 11: self.stream_id, 13: self.xid, 14: index, 16: checksum,
        }  # fmt: skip

    def forget(self) -> None:
        """Let the decoded map go: it is made again whenever it is asked for."""
        self._fields = None

    @property
    def meta(self) -> Mapping[str, Any]:
        """The meta map, empty if absent."""
        return self.fields.get(5) or {}

    @property
    def payload_size(self) -> int:
        """Payload bytes (0 if absent)."""
        return self.places[1] if self.places is not None else len(self.fields.get(6) or b"")

    def frame(self) -> Frame:
        """Build the `Frame`, without a second decode."""
        return Frame.of(self.fields, self.body)

    def routed(self, body: bytes, xid: MessageId) -> FrameView:
        """Return the same frame with a routing id: `body` is this one's with one more pair at its end."""
        fields = None if self._fields is None else {**self._fields, 13: xid}
        return frame_view(
            body, self.type, self.id, self.seq, xid, self.stream_id, fields, self.places, self._like, self._told
        )

    def __repr__(self) -> str:
        return f"<{self.type.name} rid={show_id(self.id)} xid={show_id(self.xid)} seq={self.seq} {len(self.body)} B>"


_new = object.__new__


def frame_view(
    body: bytes, kind: FrameType, rid: MessageId, seq: int, xid: MessageId | None, stream_id: str | None,
    fields: dict[int, Any] | None, places: ChunkPlaces | None = None, like: dict[int, Any] | None = None,
    told: Told | None = None,
) -> FrameView:  # fmt: skip
    """Make the view of a body that was checked. One is made for every frame that is read or written, and a function
    does so in two thirds of the time of a class that is called."""
    view = _new(FrameView)
    view.body = body
    view.type = kind
    view.id = rid
    view.seq = seq
    view.xid = xid
    view.stream_id = stream_id
    view._fields = fields
    view.places = places
    view._like = like
    view._told = told
    return view
