"""JSON in frames is UTF-8 whose texts can be written again: to a terminal, in CBOR, in another JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import cbor2
import pytest

from capdag.errors import RemoteProtocolError
from capdag.wire import FrameType, inspect, read_pools
from capdag.wire.manifest import read_manifest
from capdag.wire.manifest_rules import manifest_faults
from capdag.wire.notify import read_notify
from tests.misbehave import manifest

POOL = {"declared": 0, "configured": 0, "active": 0, "queued": 0}


def notice(data: bytes) -> object:
    limits = {"max_frame": 1, "max_chunk": 1}
    return read_notify(
        inspect(cbor2.dumps({0: 6, 1: int(FrameType.RELAY_NOTIFY), 2: 0, 5: {**limits, "manifest": data}}))
    )


def faults(data: bytes) -> None:
    found = manifest_faults(data)
    if found:
        raise RemoteProtocolError(found[0].text)


def a_manifest(name: str) -> Any:
    return manifest(name, ["cap:a;in=media:octets;out=media:octets"])


DOCUMENTS: dict[str, tuple[Callable[[bytes], object], Callable[[str], Any]]] = {
    "pools": (read_pools, lambda text: {text: POOL}),
    "a manifest": (read_manifest, a_manifest),
    "a manifest as its author reads it": (faults, a_manifest),
    "a notice": (notice, lambda text: {"installed_cartridges": [], "host_id": text}),
}


@pytest.mark.parametrize(("read", "document"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_whole_characters_are_read_and_halves_are_not(
    read: Callable[[bytes], object], document: Callable[[str], Any]
) -> None:
    for text in ("plain", "é", "😀", "\\ud83d"):
        for is_ascii in (True, False):
            read(json.dumps(document(text), ensure_ascii=is_ascii).encode())
    written = json.dumps(document("😀"))
    whole = "\\ud83d\\ude00"
    assert whole in written
    for wrong in (
        written.replace(whole, "\\ud83d").encode(),
        written.encode().replace(whole.encode(), b"\xed\xa0\xbd"),
        written.encode().replace(whole.encode(), b"\xff"),
        written.encode("utf-16"),
    ):
        with pytest.raises(RemoteProtocolError, match="must be JSON in UTF-8: "):
            read(wrong)
