"""One body. Any bytes give a frame or a RemoteProtocolError; a frame reads the same the second time, when its shape is
known, and as a lenient decoder reads it; what was read can be written, and read again as the same; with a routing id it
is the same frame with one more key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cbor2

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameView, encode_frame, inspect, with_routing_id

from ..vectors import load, traces


def seeds() -> Iterator[bytes]:
    """Every body of the vectors, and of the traces one of each type and direction."""
    for name in ("valid", "invalid", "handshake", "accessors"):
        yield from (bytes.fromhex(row["hex"]) for row in load(f"wire/{name}"))
    for frames in traces():
        for frame in {(one["fields"]["type"], one["dir"]): one for one in frames if "hex" in one}.values():
            yield bytes.fromhex(frame["hex"])


def check(data: bytes) -> None:
    """See the module."""
    view, again = _inspected(data), _inspected(data)
    if isinstance(view, str) or isinstance(again, str):
        assert view == again
        return
    header = ("body", "type", "id", "seq", "xid", "stream_id", "payload_size")
    assert all(getattr(view, name) == getattr(again, name) for name in header)
    fields = _shown(view.fields)
    assert _shown(again.fields) == fields
    kept = {key: value for key, value in cbor2.loads(data).items() if value is not None or not 0 <= key <= 21}
    assert _shown(kept) == fields
    written = inspect(encode_frame(view.frame()))
    assert _shown(written.fields) == fields
    assert encode_frame(written.frame()) == written.body
    routed = inspect(with_routing_id(view, 2**64 - 1).body)
    assert _shown(routed.fields) == _shown({**view.fields, 13: 2**64 - 1})


def _inspected(body: bytes) -> FrameView | str:
    try:
        return inspect(body)
    except RemoteProtocolError as error:
        return str(error)


def _shown(fields: dict[int, Any]) -> str:
    """Fields as text: a float that is no number equals itself only so, and True is not 1."""
    return repr([(key, int(value) if key == 1 else value) for key, value in sorted(fields.items())])
