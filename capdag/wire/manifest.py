"""A cartridge's manifest: JSON that names its caps (protocol-spec/wire.md, Manifest).

Plain functions over JSON values: the SDK builds one at cold start, the host reads one at the handshake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError
from capdag.urn import CapUrn, UrnError

from .documents import read_json
from .frame import show_value
from .link_life import IDENTITY_CAP

MAX_MANIFEST = 1 << 20
"""Longest manifest that is read (bytes): what hosts advertise is made of them, and has to fit one frame."""

MAX_FACT = 1_000
"""Longest version and registry_url (characters): they are advertised of a cartridge whatever else of it is not."""


class CapEntry(NamedTuple):
    """One cap of a manifest: its canonical URN and the cap's JSON object as written."""

    urn: CapUrn
    facts: Mapping[str, Any]


class Manifest(NamedTuple):
    """A checked manifest. `groups` is the JSON that is advertised as it came."""

    name: str
    version: str
    channel: str
    registry_url: str | None
    description: str
    groups: list[Mapping[str, Any]]
    caps: list[CapEntry]
    pool_declarations: Mapping[str, Any]


def read_manifest_json(data: object) -> Any:
    """Read the JSON of a manifest. Raises RemoteProtocolError for what is none, and past MAX_MANIFEST bytes."""
    if isinstance(data, bytes) and len(data) > MAX_MANIFEST:
        raise RemoteProtocolError(
            f"the manifest has {len(data)} bytes, and may have {MAX_MANIFEST}: name fewer caps, or keep long "
            "texts, such as documentation and metadata, out of it"
        )
    return read_json(data, "the manifest")


def read_manifest(data: bytes) -> Manifest:
    """Read and check a manifest. Raises RemoteProtocolError naming the field at fault and what it must be."""
    parsed = read_manifest_json(data)
    if not isinstance(parsed, dict):
        raise RemoteProtocolError(f"the manifest must be a JSON object, not {type(parsed).__name__}")
    texts = [_need(parsed, key, str, "manifest") for key in ("name", "version", "channel", "description")]
    if texts[2] not in ("release", "nightly"):
        raise RemoteProtocolError(f"manifest channel must be release or nightly, not {show_value(texts[2])}")
    if "registry_url" not in parsed or not isinstance(parsed["registry_url"], (str, type(None))):
        seen = show_value(parsed["registry_url"]) if "registry_url" in parsed else "absent"
        raise RemoteProtocolError(f"manifest registry_url must be there, as null or a text; it is {seen}")
    for key in ("version", "registry_url"):
        if len(parsed[key] or "") > MAX_FACT:
            raise RemoteProtocolError(f"manifest {key} may have {MAX_FACT} characters, not {len(parsed[key])}")
    groups = _need(parsed, "cap_groups", list, "manifest")
    caps = [entry for group in groups for entry in _read_group(group)]
    if not any(entry.facts["urn"] == IDENTITY_CAP for entry in caps):
        raise RemoteProtocolError(f"the manifest must name the identity cap, spelled exactly {IDENTITY_CAP!r}")
    declarations = parsed.get("pool_declarations") or {}
    return Manifest(
        texts[0], texts[1], texts[2], parsed["registry_url"], texts[3], groups, caps,
        declarations if isinstance(declarations, dict) else {},
    )  # fmt: skip


def _need(holder: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = holder.get(key)
    if not isinstance(value, kind) or (kind is list and not value):
        wanted = "a non-empty list" if kind is list else "text"
        raise RemoteProtocolError(f"{where} needs {key} as {wanted}, not {show_value(value)}")
    return value


def _read_group(group: object) -> Iterable[CapEntry]:
    if not isinstance(group, dict):
        raise RemoteProtocolError(f"a cap group must be a JSON object, not {type(group).__name__}")
    name = _need(group, "name", str, "a cap group")
    for cap in _need(group, "caps", list, f"cap group {show_value(name)}"):
        if not isinstance(cap, dict):
            raise RemoteProtocolError(
                f"a cap of group {show_value(name)} must be a JSON object, not {type(cap).__name__}"
            )
        text = _need(cap, "urn", str, f"a cap of group {show_value(name)}")
        try:
            yield CapEntry(CapUrn.parse(text), cap)
        except UrnError as error:
            raise RemoteProtocolError(f"cap {show_value(text)} of group {show_value(name)}: {error}") from None


def identity_cap() -> dict[str, Any]:
    """Return the manifest entry of the identity cap, which every cartridge has."""
    return {
        "urn": IDENTITY_CAP,
        "title": "Identity",
        "aliases": ["identity"],
        "args": [{"media_urn": "media:", "name": "input", "required": True, "sources": [{"stdin": "media:"}]}],
        "outputs": [{"media_urn": "media:", "name": "output", "output_description": "the input, unchanged"}],
    }
