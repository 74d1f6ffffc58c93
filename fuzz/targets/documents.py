# ruff: noqa: PT017 - these are no tests of pytest, whose `raises` would hide what else comes

"""The JSON that HELLO and RELAY_NOTIFY carry. Any bytes are read or give a RemoteProtocolError, each time the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import cbor2

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameType, FrameView, inspect, read_cartridge_hello, read_pools
from capdag.wire.manifest import read_manifest
from capdag.wire.notify import read_notify

from ..vectors import traces

_LIMITS = {"max_frame": 1, "max_chunk": 1, "max_reorder_buffer": 1, "initial_credit": 1}


def seeds() -> Iterator[bytes]:
    """Every manifest, pool map and notice of the traces."""
    for frames in traces():
        for frame in frames:
            meta = frame["fields"].get("meta") or {}
            for value in (meta.get("manifest"), meta.get("pools")):
                if isinstance(value, dict) and "json_bytes" in value:
                    yield json.dumps(value["json_bytes"], separators=(",", ":")).encode()


def check(data: bytes) -> None:
    """See the module."""
    for read in (read_manifest, read_pools, _read_notify, _read_hello):
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append(repr(read(data)))
            except RemoteProtocolError as error:
                assert str(error)
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


def _read_notify(data: bytes) -> object:
    return read_notify(_frame(FrameType.RELAY_NOTIFY, {**_LIMITS, "manifest": data}))


def _read_hello(data: bytes) -> object:
    return read_cartridge_hello(_frame(FrameType.HELLO, {**_LIMITS, "version": 6, "manifest": data, "pools": data}))


def _frame(kind: FrameType, meta: dict[str, Any]) -> FrameView:
    return inspect(cbor2.dumps({0: 6, 1: int(kind), 2: 0, 3: 0, 5: meta}))
