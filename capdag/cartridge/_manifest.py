"""The manifest an author's declarations make, checked so that a mistake is told to the author and not to a host
(protocol-spec/wire.md, Manifest)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capdag.errors import ConfigError
from capdag.urn import CapUrn, MediaUrn, UrnError
from capdag.wire import IDENTITY_CAP

Facts = Mapping[str, Any]

_ARG_KEYS = {
    "media_urn": str, "name": str, "required": bool, "sources": list, "accepts": object, "arg_description": str,
    "default_value": object, "metadata": object, "is_sequence": bool, "streaming": bool,
}  # fmt: skip
_OUTPUT_KEYS = {
    "media_urn": str, "name": str, "output_description": str, "optional": bool, "carries": str, "metadata": object,
    "is_sequence": bool, "streaming": bool,
}  # fmt: skip
_ARG_REQUIRED = ("media_urn", "name", "required", "sources")
_OUTPUT_REQUIRED = ("media_urn", "name", "output_description")
_KINDS = {str: "text", bool: "true or false", list: "a list"}
_RESERVED_NAMES = ("true", "false", "null")
_RESERVED_FLAGS = ("manifest", "--help", "--version", "-v", "-h")


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
    where = f"cap {str(cap)!r}"
    if not isinstance(title, str) or not title:
        raise ConfigError(f"{where}: title must be a non-empty text, not {title!r}")
    if not aliases or isinstance(aliases, str) or not all(isinstance(alias, str) and alias for alias in aliases):
        raise ConfigError(f"{where}: aliases must be a non-empty list of texts, not {aliases!r}")
    if args is None:
        args = [] if cap.in_media.is_void else [_default_arg(cap)]
    if outputs is None:
        outputs = [] if cap.out_media.is_void else [_default_output(cap, title)]
    facts: dict[str, Any] = {
        "urn": str(cap),
        "title": title,
        "aliases": list(aliases),
        "args": _check_args(where, cap, args),
        "outputs": _check_outputs(where, cap, outputs),
    }
    if metadata is not None:
        facts["metadata"] = dict(metadata)
    return facts


def _default_arg(cap: CapUrn) -> Facts:
    media = str(cap.in_media)
    return {"media_urn": media, "name": "input", "required": True, "sources": [{"stdin": media}]}


def _default_output(cap: CapUrn, title: str) -> Facts:
    return {"media_urn": str(cap.out_media), "name": "output", "output_description": title}


def _check_args(where: str, cap: CapUrn, args: Sequence[Facts]) -> list[dict[str, Any]]:
    checked = []
    mains = 0
    for number, given in enumerate(args):
        at = f"{where}: args[{number}]"
        arg = _check_entry(at, given, _ARG_KEYS, _ARG_REQUIRED)
        arg["sources"] = [_check_source(f"{at}.sources[{n}]", source) for n, source in enumerate(arg["sources"])]
        if not arg["sources"]:
            raise ConfigError(f"{at}.sources must name where the value comes from, as in [{{'stdin': MEDIA_URN}}]")
        is_main = _is_main_arg(at, cap, arg)
        mains += is_main
        if arg.get("streaming") and not is_main:
            raise ConfigError(f"{at}.streaming is for the main input only (the one whose stdin source is in=)")
        checked.append(arg)
    wanted = 0 if cap.in_media.is_void else 1
    if mains != wanted:
        raise ConfigError(
            f"{where}: args must have {wanted} with a stdin source equivalent to in={cap.in_media}, not {mains}"
        )
    _check_unique(where, "args", checked)
    _check_positions(where, checked)
    return checked


def _is_main_arg(at: str, cap: CapUrn, arg: Facts) -> bool:
    kinds = [kind for source in arg["sources"] for kind in source]
    if "position" in kinds and "cli_flag" in kinds:
        raise ConfigError(f"{at}.sources has both position and cli_flag: keep one")
    stdin = next((source["stdin"] for source in arg["sources"] if "stdin" in source), None)
    if stdin is None:
        return False
    if "accepts" in arg:
        raise ConfigError(f"{at}.accepts cannot stand beside a stdin source: drop one")
    if cap.in_media.is_void:
        raise ConfigError(
            f"{at}.sources has stdin, but a cap with in=media:void takes no stream: use position or cli_flag"
        )
    return _media(f"{at}.sources", stdin).is_equivalent(cap.in_media)


def _check_source(at: str, source: object) -> dict[str, Any]:
    known = ("stdin", "position", "cli_flag")
    if not isinstance(source, Mapping) or len(given := [key for key in known if key in source]) != 1:
        raise ConfigError(f"{at} must be a map with one of {', '.join(known)}, not {source!r}")
    key = given[0]
    value = source[key]
    if key == "stdin":
        value = str(_media(f"{at}.stdin", value))
    elif key == "position" and (type(value) is not int or value < 0):
        raise ConfigError(f"{at}.position must be an integer of at least 0, not {value!r}")
    elif key == "cli_flag" and (not isinstance(value, str) or not value or value in _RESERVED_FLAGS):
        raise ConfigError(f"{at}.cli_flag must be a text other than {', '.join(_RESERVED_FLAGS)}, not {value!r}")
    return {key: value}


def _check_positions(where: str, args: Sequence[Facts]) -> None:
    positions = [source["position"] for arg in args for source in arg["sources"] if "position" in source]
    if sorted(positions) != list(range(len(positions))):
        raise ConfigError(f"{where}: positions of args must be 0, 1, 2… without gaps, not {positions}")


def _check_outputs(where: str, cap: CapUrn, outputs: Sequence[Facts]) -> list[dict[str, Any]]:
    checked = []
    mains = 0
    for number, given in enumerate(outputs):
        at = f"{where}: outputs[{number}]"
        output = _check_entry(at, given, _OUTPUT_KEYS, _OUTPUT_REQUIRED)
        if output.get("carries") not in (None, "input"):
            raise ConfigError(f"{at}.carries must be 'input', not {output['carries']!r}")
        mains += not cap.out_media.is_void and _media(at, output["media_urn"]).is_equivalent(cap.out_media)
        checked.append(output)
    if cap.out_media.is_void and checked:
        raise ConfigError(f"{where}: a cap with out=media:void has no outputs, but {len(checked)} are declared")
    if not cap.out_media.is_void and mains != 1:
        raise ConfigError(f"{where}: outputs must have one equivalent to out={cap.out_media}, not {mains}")
    _check_unique(where, "outputs", checked)
    return checked


def _check_entry(at: str, given: object, keys: Mapping[str, type], required: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{at} must be a map, not {given!r}")
    for key, value in given.items():
        kind = keys.get(key)
        if kind is None:
            raise ConfigError(f"{at} has the unknown key {key!r}: known are {', '.join(keys)}")
        if not isinstance(value, kind):
            raise ConfigError(f"{at}.{key} must be {_KINDS[kind]}, not {value!r}")
    for key in required:
        if key not in given:
            raise ConfigError(f"{at} needs {key}")
    name = given["name"]
    if name in _RESERVED_NAMES or not _is_name(name):
        raise ConfigError(f"{at}.name must be a letter or _, then letters, digits, _ or -, not {name!r}")
    return {**given, "media_urn": str(_media(f"{at}.media_urn", given["media_urn"]))}


def _is_name(name: str) -> bool:
    plain = name.replace("-", "_")
    return name.isascii() and plain.isidentifier() and not name.startswith("-")


def _media(at: str, text: object) -> MediaUrn:
    if not isinstance(text, str):
        raise ConfigError(f"{at} must be a media URN, not {text!r}")
    try:
        return MediaUrn.parse(text)
    except UrnError as error:
        raise ConfigError(f"{at} is not a media URN: {error}") from None


def _check_unique(where: str, field: str, entries: Sequence[Facts]) -> None:
    for key in ("name", "media_urn"):
        seen: set[str] = set()
        for entry in entries:
            if entry[key] in seen:
                raise ConfigError(f"{where}: two {field} have the {key} {entry[key]!r}")
            seen.add(entry[key])


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
