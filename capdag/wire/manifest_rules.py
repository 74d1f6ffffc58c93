"""Everything that a manifest must be, fault by fault (protocol-spec/wire.md, Manifest): the one place for it, whoever
writes a manifest or checks one.

A host reads with `read_manifest`, which asks for what it routes by. Other hosts are stricter: this is what they ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError
from capdag.urn import CapUrn, MediaUrn, UrnError

from .frame import show_value
from .link_life import IDENTITY_CAP
from .manifest import MAX_FACT, Manifest, read_manifest_json
from .pools import ALL_POOL


class ManifestRule(Enum):
    """What a fault of a manifest is about."""

    FIELDS = auto()
    """An object's keys, and their values by themselves."""
    IDENTITY = auto()
    """L13: the identity cap is there."""
    URNS = auto()
    """URNs can be read, and are spelled canonically."""
    ARGUMENTS = auto()
    """Arguments and outputs fit their cap's in= and out=, and each other."""


class ManifestFault(NamedTuple):
    """One thing that is wrong. `text` says where, what was seen, and what it must be.

    `is_fatal`: no host serves such a cap, as its callers cannot tell what to send.
    """

    rule: ManifestRule
    text: str
    is_fatal: bool = False


_Kind = tuple[type, str, bool]
"""What a key holds: its type, words for it that follow "must", and whether it may be empty. A plain tuple: cartridges
import this while their host waits."""

_Shape = tuple[Mapping[str, _Kind], Mapping[str, _Kind]]
"""What an object needs and what it may have, by key."""

_TEXT, _NAME = (str, "be a text", True), (str, "be a non-empty text", False)
_BOOL, _ANY = (bool, "be true or false", True), (object, "be anything", True)
_LIST, _MAP = (list, "be a list", True), (dict, "be a map", True)
_SOME = (list, "be a non-empty list", False)

_MANIFEST: _Shape = (
    {"name": _NAME, "version": _NAME, "channel": _NAME, "description": _TEXT, "cap_groups": _SOME},
    {"author": _TEXT, "page_url": _TEXT, "pool_declarations": _MAP},
)
_GROUP: _Shape = ({"name": _TEXT, "caps": _SOME}, {"adapter_urns": _LIST})
_CAP: _Shape = (
    {"urn": _NAME, "title": _NAME, "aliases": (list, "be a non-empty list of texts", False)},
    {"args": _LIST, "outputs": _LIST, "metadata": _ANY, "version": _ANY, "documentation": _TEXT},
)
_ARG: _Shape = (
    {
        "media_urn": _TEXT, "name": _TEXT, "required": _BOOL,
        "sources": (list, "name where the value comes from, as in [{'stdin': MEDIA_URN}]", False),
    },
    {
        "accepts": _ANY, "arg_description": _TEXT, "default_value": _ANY, "metadata": _ANY, "is_sequence": _BOOL,
        "streaming": _BOOL,
    },
)  # fmt: skip
_OUTPUT: _Shape = (
    {"media_urn": _TEXT, "name": _TEXT, "output_description": _TEXT},
    {"optional": _BOOL, "carries": _TEXT, "metadata": _ANY, "is_sequence": _BOOL, "streaming": _BOOL},
)
_SOURCES = ("stdin", "position", "cli_flag")
_RESERVED_NAMES = ("true", "false", "null")
_READ_BY_CALLERS = ("aliases", "args", "outputs")
"""Keys of a cap whose type callers build on."""
_NAMED = 4
"""Pools of which one fault tells the names."""
_RESERVED_FLAGS = ("manifest", "--help", "--version", "-v", "-h")


def manifest_faults(data: bytes) -> list[ManifestFault]:
    """Return everything that is wrong with a manifest; empty if nothing is."""
    try:
        manifest = read_manifest_json(data)
    except RemoteProtocolError as error:
        return [_field(str(error))]
    if not isinstance(manifest, dict):
        return [_field(f"the manifest must be a map, not {type(manifest).__name__}")]
    return list(_manifest_faults(manifest))


def pool_faults(manifest: Manifest, pools: Collection[str]) -> list[str]:
    """Return what is wrong with the names of the pools in a HELLO or in a reply to a heartbeat."""
    declared = manifest.pool_declarations.get("pools")
    shared = declared if isinstance(declared, dict) else ()
    wanted = dict.fromkeys([*(str(cap.urn) for cap in manifest.caps), *shared, ALL_POOL])
    missing = [show_value(name) for name in wanted if name not in pools]
    if not missing:
        return []
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    named = ", ".join(missing[:_NAMED]) + more
    return [f"pools must have one for each cap, each shared pool and {ALL_POOL!r}; there is none for {named}"]


def _field(text: str, *, is_fatal: bool = False) -> ManifestFault:
    return ManifestFault(ManifestRule.FIELDS, text, is_fatal)


def _misfit(text: str, *, is_fatal: bool = False) -> ManifestFault:
    return ManifestFault(ManifestRule.ARGUMENTS, text, is_fatal)


def _manifest_faults(manifest: Mapping[str, Any]) -> Iterator[ManifestFault]:
    yield from _fields("the manifest: ", manifest, _MANIFEST)
    if manifest.get("channel") not in ("release", "nightly"):
        yield _field(f"the manifest: channel must be release or nightly, not {show_value(manifest.get('channel'))}")
    if "registry_url" not in manifest or not isinstance(manifest["registry_url"], (str, type(None))):
        yield _field("the manifest: registry_url must be there, null or a text")
    for key in ("version", "registry_url"):
        if isinstance(text := manifest.get(key), str) and len(text) > MAX_FACT:
            yield _field(f"the manifest: {key} may have {MAX_FACT} characters, not {len(text)}")
    yield from _pool_declaration_faults(manifest.get("pool_declarations", {}))
    urns = []
    for number, group in enumerate(_list(manifest, "cap_groups")):
        where = f"cap_groups[{number}]"
        if not isinstance(group, dict):
            yield _field(f"{where} must be a map, not {show_value(group)}")
            continue
        yield from _fields(f"{where}.", group, _GROUP)
        for position, cap in enumerate(_list(group, "caps")):
            if isinstance(cap, dict):
                urns.append(cap.get("urn"))
                yield from cap_faults(f"cap {show_value(urns[-1])}" if urns[-1] else f"{where}.caps[{position}]", cap)
            else:
                yield _field(f"{where}.caps[{position}] must be a map, not {show_value(cap)}")
    if IDENTITY_CAP not in urns:
        yield ManifestFault(ManifestRule.IDENTITY, f"the manifest names no cap {IDENTITY_CAP!r}, spelled so")
    for urn, times in Counter(_canonical(urn) for urn in urns if isinstance(urn, str)).items():
        if times > 1:
            yield ManifestFault(
                ManifestRule.URNS, f"cap {show_value(urn)} is listed {times} times: only the first counts"
            )


def _canonical(urn: str) -> str:
    try:
        return str(CapUrn.parse(urn))
    except UrnError:
        return urn


def _pool_declaration_faults(declared: object) -> Iterator[ManifestFault]:
    """Judge the shared pools, by name the caps in each, and the sizes of pools."""
    if not isinstance(declared, dict):
        return
    pools, sizes = declared.get("pools", {}), declared.get("capacities", {})
    at = "the manifest: pool_declarations"
    for key, value in (("pools", pools), ("capacities", sizes)):
        if not isinstance(value, dict):
            yield _field(f"{at}.{key} must be a map, not {show_value(value)}")
    for name, caps in pools.items() if isinstance(pools, dict) else ():
        if name == ALL_POOL or name.startswith("cap:"):
            yield _field(
                f"{at}.pools must not name {show_value(name)}: {ALL_POOL!r} and each cap have pools of their own"
            )
        if not isinstance(caps, list) or not all(isinstance(cap, str) for cap in caps):
            yield _field(f"{at}.pools.{show_value(name)} must be a list of cap URNs, not {show_value(caps)}")
    for name, size in sizes.items() if isinstance(sizes, dict) else ():
        if type(size) is not int or size < 0:
            yield _field(f"{at}.capacities.{show_value(name)} must be an integer of at least 0, not {show_value(size)}")


def _list(holder: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else []


def _fields(at: str, holder: Mapping[str, Any], shape: _Shape) -> Iterator[ManifestFault]:
    needed, optional = shape
    for key, (kind, words, may_be_empty) in {**needed, **optional}.items():
        if key in holder:
            value = holder[key]
            if not isinstance(value, kind) or not (value or may_be_empty):
                yield _field(
                    f"{at}{key} must {words}, not {show_value(value)}",
                    is_fatal=not isinstance(value, kind) and key in _READ_BY_CALLERS,
                )
        elif key in needed:
            yield _field(f"{at.rstrip('.: ')} needs {key}")


def cap_faults(where: str, cap: Mapping[str, Any]) -> Iterator[ManifestFault]:
    """Yield what is wrong with one cap's object, the first first. `where` begins each text."""
    yield from _fields(f"{where}: ", cap, _CAP)
    if not all(isinstance(alias, str) and alias for alias in _list(cap, "aliases")):
        yield _field(f"{where}: aliases must be a non-empty list of texts, not {show_value(cap['aliases'])}")
    try:
        urn = CapUrn.parse(str(cap.get("urn")))
    except UrnError as error:
        yield ManifestFault(ManifestRule.URNS, f"{where} is not a cap URN: {error}")
        return
    if str(urn) != cap["urn"]:
        yield ManifestFault(ManifestRule.URNS, f"{where}: its canonical form is {urn}")
    args, outputs = _list(cap, "args"), _list(cap, "outputs")
    for number, arg in enumerate(args):
        yield from _arg_faults(f"{where}: args[{number}]", urn, arg)
    for number, output in enumerate(outputs):
        yield from _output_faults(f"{where}: outputs[{number}]", output)
    yield from _fit_faults(where, urn, [arg for arg in args if isinstance(arg, dict)])
    yield from _outcome_faults(where, urn, [output for output in outputs if isinstance(output, dict)])


def _entry_faults(at: str, entry: object, shape: _Shape) -> Iterator[ManifestFault]:
    """Judge what args and outputs have in common. Unlike other objects they may hold nothing unknown."""
    if not isinstance(entry, dict):
        yield _field(f"{at} must be a map, not {show_value(entry)}", is_fatal=True)
        return
    known = shape[0].keys() | shape[1].keys()
    for key in entry:
        if key not in known:
            yield _field(
                f"{at} has the unknown key {show_value(key)}, which hosts refuse: known are {', '.join(sorted(known))}"
            )
    yield from _fields(f"{at}.", entry, shape)
    name = entry.get("name")
    if isinstance(name, str) and not _is_name(name):
        yield _field(f"{at}.name must be a letter or _, then letters, digits, _ or -, not {show_value(name)}")
    if isinstance(entry.get("media_urn"), str):
        yield from _media_faults(f"{at}.media_urn", entry["media_urn"])


def _is_name(name: str) -> bool:
    plain = name.isascii() and name.replace("-", "_").isidentifier() and not name.startswith("-")
    return plain and name not in _RESERVED_NAMES


def _media_faults(at: str, text: object) -> Iterator[ManifestFault]:
    if not isinstance(text, str):
        yield _field(f"{at} must be a media URN, not {show_value(text)}")
        return
    try:
        media = MediaUrn.parse(text)
    except UrnError as error:
        yield ManifestFault(ManifestRule.URNS, f"{at} is not a media URN: {error}")
        return
    if str(media) != text:
        yield ManifestFault(ManifestRule.URNS, f"{at} is {show_value(text)}: its canonical form is {media}")


def _means(text: object, media: MediaUrn) -> bool:
    try:
        return isinstance(text, str) and MediaUrn.parse(text).is_equivalent(media)
    except UrnError:
        return False


def _arg_faults(at: str, cap: CapUrn, arg: object) -> Iterator[ManifestFault]:
    yield from _entry_faults(at, arg, _ARG)
    if not isinstance(arg, dict):
        return
    for number, source in enumerate(_list(arg, "sources")):
        yield from _source_faults(f"{at}.sources[{number}]", source)
    kinds = _sources(arg)
    if "position" in kinds and "cli_flag" in kinds:
        yield _misfit(f"{at}.sources has both position and cli_flag: keep one")
    if "stdin" in kinds and "accepts" in arg:
        yield _misfit(f"{at}.accepts cannot stand beside a stdin source: drop one")
    if "stdin" in kinds and cap.in_media.is_void:
        yield _misfit(f"{at}.sources has stdin, but a cap with in=media:void takes no stream: use position or cli_flag")
    elif arg.get("streaming") is True and not _means(kinds.get("stdin"), cap.in_media):
        yield _misfit(f"{at}.streaming is for the main input only (the one whose stdin source is in=)")


def _sources(arg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sources of an argument that can be read, by kind."""
    return {
        kind: value for source in _list(arg, "sources") if isinstance(source, dict) for kind, value in source.items()
    }


def _source_faults(at: str, source: object) -> Iterator[ManifestFault]:
    if not isinstance(source, dict) or len(source) != 1 or not source.keys() <= set(_SOURCES):
        yield _field(f"{at} must be a map with one of {', '.join(_SOURCES)}, not {show_value(source)}")
        return
    ((kind, value),) = source.items()
    if kind == "stdin":
        yield from _media_faults(f"{at}.stdin", value)
    elif kind == "position" and (type(value) is not int or value < 0):
        yield _field(f"{at}.position must be an integer of at least 0, not {show_value(value)}")
    elif kind == "cli_flag" and (not isinstance(value, str) or not value or value in _RESERVED_FLAGS):
        yield _field(f"{at}.cli_flag must be a text other than {', '.join(_RESERVED_FLAGS)}, not {show_value(value)}")


def _output_faults(at: str, output: object) -> Iterator[ManifestFault]:
    yield from _entry_faults(at, output, _OUTPUT)
    if isinstance(output, dict) and output.get("carries") not in (None, "input"):
        yield _field(f"{at}.carries must be 'input', not {show_value(output['carries'])}")


def _fit_faults(where: str, cap: CapUrn, args: Sequence[Mapping[str, Any]]) -> Iterator[ManifestFault]:
    """Judge the args of a cap together."""
    wanted = 0 if cap.in_media.is_void else 1
    mains = sum(_means(_sources(arg).get("stdin"), cap.in_media) for arg in args)
    if mains != wanted:
        what = f"with a stdin source equivalent to in={cap.in_media}"
        yield _misfit(f"{where}: args must have {wanted} {what}, not {mains}", is_fatal=mains > 1)
    yield from _double_faults(where, "args", args)
    positions = [value for arg in args if type(value := _sources(arg).get("position")) is int]
    if sorted(positions) != list(range(len(positions))):
        yield _misfit(f"{where}: positions of args must be 0, 1, 2… without gaps, not {positions}")


def _outcome_faults(where: str, cap: CapUrn, outputs: Sequence[Mapping[str, Any]]) -> Iterator[ManifestFault]:
    """Judge the outputs of a cap together."""
    if cap.out_media.is_void:
        if outputs:
            text = f"{where}: a cap with out=media:void has no outputs, but {len(outputs)} are declared"
            yield _misfit(text)
    else:
        mains = sum(_means(output.get("media_urn"), cap.out_media) for output in outputs)
        if mains != 1:
            yield _misfit(f"{where}: outputs must have one equivalent to out={cap.out_media}, not {mains}")
    yield from _double_faults(where, "outputs", outputs)


def _double_faults(where: str, field: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[ManifestFault]:
    for key in ("name", "media_urn"):
        values = [entry.get(key) for entry in entries]
        for value in dict.fromkeys(value for value in values if isinstance(value, str)):
            if values.count(value) > 1:
                yield _misfit(f"{where}: two {field} have the {key} {show_value(value)}")
