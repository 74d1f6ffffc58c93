"""A stream of bytes. Any bytes give bodies, and then an end or a RemoteProtocolError; whole, byte by byte and cut in
two they give the same. What links read with, which takes CHUNKs in runs, gives what these bodies give one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameSplitter, inspect
from capdag.wire.blocks import BlockReader, Parcel, single_frames

from ..vectors import load, traces
from .frame import check as check_body

MAX_FRAME = 65_536


def seeds() -> Iterator[bytes]:
    """The streams of the vectors, and the first frames of each trace."""
    yield from (bytes.fromhex(row["stream_hex"]) for row in load("wire/framing"))
    for frames in traces():
        whole = [bytes.fromhex(frame["hex"]) for frame in frames if "hex" in frame][:6]
        yield b"".join(len(body).to_bytes(4, "big") + body for body in whole)


def check(data: bytes) -> None:
    """See the module."""
    bodies, end = _split([data])
    cut = data[0] if data else 0
    single = [data[at : at + 1] for at in range(len(data))]
    assert _split([data[:cut], data[cut:]]) == _split(single) == (bodies, end)
    for body in bodies:
        check_body(body)
    good = _good(bodies)
    for pieces in ([data], [data[:cut], data[cut:]], single):
        assert _linked(pieces) == good


def _split(pieces: Iterable[bytes]) -> tuple[list[bytes], str]:
    splitter = FrameSplitter(MAX_FRAME)
    bodies: list[bytes] = []
    try:
        for piece in pieces:
            bodies.extend(splitter.feed(piece))
        splitter.eof()
    except RemoteProtocolError as error:
        return bodies, str(error).partition(";")[0]  # after it stand the bytes at hand, more or fewer
    return bodies, ""


def _good(bodies: Iterable[bytes]) -> list[str]:
    """Return the frames up to the first bad one, as text."""
    shown: list[str] = []
    try:
        for body in bodies:
            view = inspect(body)
            shown.append(repr((view.body, view.id, view.seq, view.xid, view.stream_id, sorted(view.fields.items()))))
    except RemoteProtocolError:
        pass
    return shown


def _linked(pieces: Iterable[bytes]) -> list[str]:
    """Return the frames that a link reads, as text."""
    reader, parcels = BlockReader(MAX_FRAME, runs=True), list[Parcel]()
    try:
        for piece in pieces:
            reader.feed(piece, parcels)
    except RemoteProtocolError:
        pass
    return _good(view.body for view in single_frames(parcels))
