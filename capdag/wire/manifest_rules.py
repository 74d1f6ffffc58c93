"""Everything that a manifest must be, for whoever writes one: each fault at once, not the first alone
(protocol-spec/wire.md, Manifest).

A host reads with `read_manifest`, which asks for what it routes by. Other hosts are stricter: this is what they ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from capdag.urn import CapUrn, MediaUrn, UrnError

from .link_life import IDENTITY_CAP


class ManifestRule(Enum):
    """What a fault of a manifest is about."""

    FIELDS = auto()
    """An object's keys, and the types of their values."""
    IDENTITY = auto()
    """L13: the identity cap is there."""
    URNS = auto()
    """URNs can be read, and are spelled canonically."""
    ARGUMENTS = auto()
    """Arguments and outputs are those that the cap's in= and out= ask for."""


class ManifestFault(NamedTuple):
    """One thing that is wrong, and where."""

    rule: ManifestRule
    where: str
    what: str


_TEXT, _BOOL, _LIST, _MAP, _ANY = (str, "text"), (bool, "true or false"), (list, "a list"), (dict, "an object"), (
    object, "anything",
)  # fmt: skip
_Kind = tuple[type, str]
_Shape = tuple[Mapping[str, _Kind], Mapping[str, _Kind]]

_MANIFEST: _Shape = (
    {"name": _TEXT, "version": _TEXT, "channel": _TEXT, "description": _TEXT, "cap_groups": _LIST},
    {"author": _TEXT, "page_url": _TEXT, "pool_declarations": _MAP},
)
_GROUP: _Shape = ({"name": _TEXT, "caps": _LIST}, {"adapter_urns": _LIST})
_CAP: _Shape = (
    {"urn": _TEXT, "title": _TEXT, "aliases": _LIST},
    {"args": _LIST, "outputs": _LIST, "metadata": _ANY, "version": _ANY, "documentation": _TEXT},
)
_ARG: _Shape = (
    {"media_urn": _TEXT, "name": _TEXT, "required": _BOOL, "sources": _LIST},
    {
        "is_sequence": _BOOL, "streaming": _BOOL, "accepts": _ANY, "arg_description": _TEXT, "default_value": _ANY,
        "metadata": _ANY,
    },
)  # fmt: skip
_OUTPUT: _Shape = (
    {"media_urn": _TEXT, "name": _TEXT, "output_description": _TEXT},
    {"is_sequence": _BOOL, "streaming": _BOOL, "optional": _BOOL, "carries": _TEXT, "metadata": _ANY},
)
_NEVER_EMPTY = ("cap_groups", "caps", "aliases", "sources", "urn", "title", "media_urn")
_SOURCES: Mapping[str, _Kind] = {"stdin": _TEXT, "position": (int, "an integer from 0 on"), "cli_flag": _TEXT}


def manifest_faults(data: bytes) -> list[ManifestFault]:
    """Return everything that is wrong with a manifest; empty if nothing is."""
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        return [ManifestFault(ManifestRule.FIELDS, "the manifest", f"is not JSON: {error}")]
    if not isinstance(manifest, dict):
        return [ManifestFault(ManifestRule.FIELDS, "the manifest", "must be a JSON object")]
    return list(_manifest_faults(manifest))


def _manifest_faults(manifest: Mapping[str, Any]) -> Iterator[ManifestFault]:
    yield from _fields("the manifest", manifest, _MANIFEST)
    if manifest.get("channel") not in ("release", "nightly"):
        yield _field("the manifest", f"needs channel release or nightly, not {manifest.get('channel')!r}")
    if "registry_url" not in manifest or not isinstance(manifest["registry_url"], (str, type(None))):
        yield _field("the manifest", "needs registry_url, null or text")
    names = []
    for number, group in enumerate(_entries(manifest, "cap_groups")):
        where = f"cap_groups[{number}]"
        if not isinstance(group, dict):
            yield _field(where, "must be an object")
            continue
        yield from _fields(where, group, _GROUP)
        for position, cap in enumerate(_entries(group, "caps")):
            if isinstance(cap, dict):
                names.append(cap.get("urn"))
                yield from _cap_faults(f"{where}.caps[{position}]", cap)
            else:
                yield _field(f"{where}.caps[{position}]", "must be an object")
    if IDENTITY_CAP not in names:
        yield ManifestFault(ManifestRule.IDENTITY, "the manifest", f"names no cap {IDENTITY_CAP!r}, spelled so")


def _entries(holder: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else []


def _field(where: str, what: str) -> ManifestFault:
    return ManifestFault(ManifestRule.FIELDS, where, what)


def _fields(where: str, holder: Mapping[str, Any], shape: _Shape, *, closed: bool = False) -> Iterator[ManifestFault]:
    needed, optional = shape
    for key, (kind, words) in {**needed, **optional}.items():
        value = holder.get(key)
        if key not in holder:
            if key in needed:
                yield _field(where, f"needs {key}, {words}")
        elif not isinstance(value, kind) or (key in _NEVER_EMPTY and not value):
            yield _field(where, f"{key} must be {words}{' with something in it' if not value else ''}, not {value!r}")
    if closed:
        for key in holder.keys() - needed.keys() - optional.keys():
            yield _field(where, f"has the key {key}, which other hosts refuse")


def _cap_faults(where: str, cap: Mapping[str, Any]) -> Iterator[ManifestFault]:
    yield from _fields(where, cap, _CAP)
    if not all(isinstance(alias, str) and alias for alias in _entries(cap, "aliases")):
        yield _field(where, f"aliases must be texts, not {cap['aliases']!r}")
    args = [one for one in _entries(cap, "args") if isinstance(one, dict)]
    outputs = [one for one in _entries(cap, "outputs") if isinstance(one, dict)]
    for number, arg in enumerate(args):
        yield from _fields(f"{where}.args[{number}]", arg, _ARG, closed=True)
        yield from _source_faults(f"{where}.args[{number}]", arg)
        yield from _media_faults(f"{where}.args[{number}].media_urn", arg.get("media_urn"))
    for number, output in enumerate(outputs):
        yield from _fields(f"{where}.outputs[{number}]", output, _OUTPUT, closed=True)
        yield from _media_faults(f"{where}.outputs[{number}].media_urn", output.get("media_urn"))
    if not isinstance(cap.get("urn"), str):
        return
    try:
        urn = CapUrn.parse(cap["urn"])
    except UrnError as error:
        yield ManifestFault(ManifestRule.URNS, f"{where}.urn", str(error))
        return
    if str(urn) != cap["urn"]:
        yield ManifestFault(ManifestRule.URNS, f"{where}.urn", f"is {cap['urn']!r}; its canonical form is {urn}")
    yield from _main_faults(f"{where} ({urn})", urn, args, outputs)


def _source_faults(where: str, arg: Mapping[str, Any]) -> Iterator[ManifestFault]:
    for number, source in enumerate(_entries(arg, "sources")):
        at = f"{where}.sources[{number}]"
        if not isinstance(source, dict) or len(source) != 1 or not source.keys() <= _SOURCES.keys():
            yield _field(at, f"must be an object with one of {', '.join(_SOURCES)}, not {source!r}")
            continue
        ((key, value),) = source.items()
        kind, words = _SOURCES[key]
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            yield _field(at, f"{key} must be {words}, not {value!r}")
        elif key == "stdin":
            yield from _media_faults(f"{at}.stdin", value)


def _media_faults(where: str, text: object) -> Iterator[ManifestFault]:
    if not isinstance(text, str):
        return
    try:
        canonical = str(MediaUrn.parse(text))
    except UrnError as error:
        yield ManifestFault(ManifestRule.URNS, where, str(error))
        return
    if canonical != text:
        yield ManifestFault(ManifestRule.URNS, where, f"is {text!r}; its canonical form is {canonical}")


def _main_faults(
    where: str, urn: CapUrn, args: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
) -> Iterator[ManifestFault]:
    stdin = [source["stdin"] for arg in args for source in _entries(arg, "sources") if _has(source, "stdin")]
    counts = (
        ("in", urn.in_media, "args have", stdin, "with a stdin source of that media"),
        ("out", urn.out_media, "outputs have", [output.get("media_urn") for output in outputs], "of that media"),
    )
    for key, media, have, texts, which in counts:
        wanted = 0 if media.is_void else 1
        found = sum(_is(text, media) for text in texts)
        if found != wanted:
            yield ManifestFault(
                ManifestRule.ARGUMENTS, where, f"{key}={media}, so {have} {wanted} {which}, and not {found}"
            )
    for what, entries in (("args", args), ("outputs", outputs)):
        for key in ("name", "media_urn"):
            values = [entry.get(key) for entry in entries]
            for value in {value for value in values if isinstance(value, str) and values.count(value) > 1}:
                yield ManifestFault(ManifestRule.ARGUMENTS, where, f"two {what} have the {key} {value!r}")


def _has(source: object, key: str) -> bool:
    return isinstance(source, dict) and isinstance(source.get(key), str)


def _is(text: object, media: MediaUrn) -> bool:
    try:
        return isinstance(text, str) and MediaUrn.parse(text).is_equivalent(media)
    except UrnError:
        return False
