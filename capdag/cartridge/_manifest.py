"""The manifest an author's declarations make, checked so that a mistake is told to the author and not to a host
(protocol-spec/wire.md, Manifest)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capdag.errors import ConfigError
from capdag.urn import CapUrn, MediaUrn, UrnError
from capdag.wire import IDENTITY_CAP
from capdag.wire.manifest_rules import cap_faults

Facts = Mapping[str, Any]


def cap_object(
    urn: str,
    *,
    title: str,
    aliases: Sequence[str],
    args: Sequence[Facts] | None,
    outputs: Sequence[Facts] | None,
    metadata: Facts | None,
) -> dict[str, Any]:
    """Return the manifest's object of one cap, every URN in canonical form. Arguments and outputs that are not given
    follow from the URN: one argument `input` unless in=media:void, one output `output` unless out=media:void.

    Raises ConfigError naming the cap, the field, the value seen and what it must be.
    """
    try:
        cap = CapUrn.parse(urn)
    except UrnError as error:
        raise ConfigError(f"cap {urn!r} is not a cap URN: {error}") from None
    if args is None:
        args = [] if cap.in_media.is_void else [_default_arg(cap)]
    if outputs is None:
        outputs = [] if cap.out_media.is_void else [_default_output(cap, title)]
    facts: dict[str, Any] = {
        "urn": str(cap),
        "title": title,
        "aliases": aliases if isinstance(aliases, str) else list(aliases),
        "args": [_canonical(arg) for arg in args],
        "outputs": [_canonical(output) for output in outputs],
    }
    for fault in cap_faults(f"cap {str(cap)!r}", facts):
        raise ConfigError(fault.text)
    if metadata is not None:
        facts["metadata"] = dict(metadata)
    return facts


def _default_arg(cap: CapUrn) -> Facts:
    media = str(cap.in_media)
    return {"media_urn": media, "name": "input", "required": True, "sources": [{"stdin": media}]}


def _default_output(cap: CapUrn, title: str) -> Facts:
    return {"media_urn": str(cap.out_media), "name": "output", "output_description": title}


def _canonical(entry: object) -> object:
    """Return an arg or an output with its media URNs in canonical form, as far as they can be read."""
    if not isinstance(entry, Mapping):
        return entry
    facts = {key: _canonical_media(value) if key == "media_urn" else value for key, value in entry.items()}
    if isinstance(facts.get("sources"), list):
        facts["sources"] = [_canonical_source(source) for source in facts["sources"]]
    return facts


def _canonical_source(source: object) -> object:
    if not isinstance(source, Mapping):
        return source
    return {key: _canonical_media(value) if key == "stdin" else value for key, value in source.items()}


def _canonical_media(text: Any) -> Any:
    try:
        return str(MediaUrn.parse(text)) if isinstance(text, str) else text
    except UrnError:
        return text


def manifest_object(
    name: str, version: str, description: str, caps: Sequence[Facts], pools: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole manifest. Raises ConfigError for a wrong name, version or description, or no caps."""
    for key, value in (("name", name), ("version", version)):
        if not isinstance(value, str) or not value:
            raise ConfigError(f"Cartridge {key} must be a non-empty text, not {value!r}")
    if not isinstance(description, str):
        raise ConfigError(f"Cartridge description must be a text, not {description!r}")
    if all(cap["urn"] == IDENTITY_CAP for cap in caps):
        raise ConfigError(f"cartridge {name!r} serves no cap: register one with @cartridge.cap(...) before run()")
    return {
        "name": name,
        "version": version,
        "channel": "release",
        "registry_url": None,
        "description": description,
        "cap_groups": [{"name": name, "caps": list(caps)}],
        "pool_declarations": pools,
    }
