"""Two bodies in a row, the first of which may make a stream known. Whatever they are: the second reads the same, or is
refused in the same words, whether its stream is known or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from capdag.errors import RemoteProtocolError
from capdag.wire import inspect
from capdag.wire.chunks import forget_streams

from ..vectors import traces


def seeds() -> Iterator[bytes]:
    """CHUNKs of the traces that follow each other, and each of them after itself."""
    for frames in traces():
        chunks = [bytes.fromhex(one["hex"]) for one in frames if "hex" in one and one["fields"]["type"] == "CHUNK"]
        for first, second in pairwise(chunks):
            for body in (first, second):
                if len(first) < 256:
                    yield bytes((len(first),)) + first + body


def check(data: bytes) -> None:
    """See the module."""
    size = data[0] if data else 0
    first, second = data[1 : 1 + size], data[1 + size :]
    forget_streams()
    _read(first)
    known, again = _read(second), _read(second)
    forget_streams()
    assert known == again == _read(second)


def _read(body: bytes) -> str:
    try:
        view = inspect(body)
    except RemoteProtocolError as error:
        return str(error)
    header = (view.type, view.id, view.seq, view.xid, view.stream_id, view.payload_size, view.body)
    return repr((header, sorted(view.fields.items())))
