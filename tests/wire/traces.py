"""The recorded conversations of protocol-spec/vectors/traces, as frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from capdag.wire import Frame, FrameType, FrameView, fnv1a_64, inspect, view_of
from capdag.wire.conversation import LinkKind
from capdag.wire.link_life import Direction
from tests.vectors import FOLDER

NAMES = sorted(path.stem for path in (FOLDER / "traces").glob("[0-9]*.json"))

_DIRECTIONS = {
    "host->cartridge": Direction.HOST_TO_CARTRIDGE,
    "cartridge->host": Direction.CARTRIDGE_TO_HOST,
    "switch->host": Direction.SWITCH_TO_HOST,
    "slave->host": Direction.SWITCH_TO_HOST,
    "host->switch": Direction.HOST_TO_SWITCH,
}


class Recorded(NamedTuple):
    """One frame of a trace. `body` is None where the trace keeps only the head of a long one."""

    number: int
    channel: str
    direction: Direction
    body: bytes | None
    fields: dict[str, Any]

    @property
    def kind(self) -> LinkKind:
        """Which kind of link it crossed."""
        return LinkKind.PIPE if self.direction in LinkKind.PIPE.value else LinkKind.RELAY

    def view(self) -> FrameView:
        """Return the frame. A long CHUNK is put together from its head: the rest of its payload is zeros, and the
        checksum that of these bytes; other long frames (a HELLO, a RELAY_NOTIFY) from the JSON that the trace shows."""
        if self.body is not None:
            return inspect(self.body)
        fields = {name: value for name, value in self.fields.items() if name not in ("type", "version", "id")}
        kind, rid = FrameType(fields.pop("frame_type")), self.fields["id"]
        if kind is FrameType.CHUNK:
            head = bytes.fromhex(fields["payload"]["hex_head"])
            fields["payload"] = head.ljust(fields["payload"]["len"], b"\0")
            fields["checksum"] = fnv1a_64(fields["payload"])
        else:
            fields["meta"] = {
                key: json.dumps(value["json_bytes"]).encode() if isinstance(value, dict) else value
                for key, value in fields["meta"].items()
            }
        return view_of(Frame(kind, bytes.fromhex(rid) if isinstance(rid, str) else rid, **fields))


def recorded(name: str) -> Iterator[Recorded]:
    """Yield the frames of a trace, in the order in which they were seen."""
    for frame in json.loads((FOLDER / "traces" / f"{name}.json").read_text())["frames"]:
        body = bytes.fromhex(frame["hex"]) if "hex" in frame else None
        yield Recorded(frame["n"], frame["chan"], _DIRECTIONS[frame["dir"]], body, frame["fields"])
