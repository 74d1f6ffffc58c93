"""Two bodies in a row, the first of which may make the form of the second known. Whatever they are: the second reads
the same, or is refused in the same words, whether its form is known or not; and what was read is written the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from capdag.errors import RemoteProtocolError
from capdag.wire import encode_frame, inspect
from capdag.wire.chunks import forget_streams
from capdag.wire.forms import forget_forms
from capdag.wire.plans import forget_plans

from ..vectors import traces


def seeds() -> Iterator[bytes]:
    """Frames of one type that follow each other in the traces, and each of them after itself."""
    for frames in traces():
        bodies: dict[str, list[bytes]] = {}
        for one in frames:
            if "hex" in one:
                bodies.setdefault(one["fields"]["type"], []).append(bytes.fromhex(one["hex"]))
        for kind, found in bodies.items():
            pairs = list(pairwise(found)) or [(found[0], found[0])]
            for first, second in pairs if kind == "CHUNK" else pairs[:1]:
                for body in (first, second):
                    if len(first) < 256:
                        yield bytes((len(first),)) + first + body


def check(data: bytes) -> None:
    """See the module."""
    size = data[0] if data else 0
    first, second = data[1 : 1 + size], data[1 + size :]
    _forget()
    _read(first)
    known, again = _read(second), _read(second)
    _forget()
    assert known == again == _read(second)


def _forget() -> None:
    forget_streams()
    forget_forms()
    forget_plans()


def _read(body: bytes) -> str:
    try:
        view = inspect(body)
    except RemoteProtocolError as error:
        return str(error)
    header = (view.type, view.id, view.seq, view.xid, view.stream_id, view.payload_size, view.body)
    return repr((header, sorted(view.fields.items()), encode_frame(view.frame())))
