"""A stream of bytes. Any bytes give bodies, and then an end or a RemoteProtocolError; whole, byte by byte and cut in
two they give the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameSplitter

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
    assert _split([data[:cut], data[cut:]]) == (bodies, end)
    assert _split(data[at : at + 1] for at in range(len(data))) == (bodies, end)
    for body in bodies:
        check_body(body)


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
