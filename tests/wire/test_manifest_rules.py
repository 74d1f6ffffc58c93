"""What is wrong with a manifest, all at once."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from capdag.wire.manifest import identity_cap
from capdag.wire.manifest_rules import ManifestRule, manifest_faults

ECHO = {
    "urn": "cap:echo;in=media:octets;out=media:octets",
    "title": "Echo",
    "aliases": ["echo"],
    "args": [
        {"media_urn": "media:octets", "name": "input", "required": True, "sources": [{"stdin": "media:octets"}]},
        {"media_urn": "media:count", "name": "times", "required": False, "sources": [{"position": 0}]},
    ],
    "outputs": [{"media_urn": "media:octets", "name": "output", "output_description": "the same"}],
}
MANIFEST = {
    "name": "echo",
    "version": "1",
    "channel": "nightly",
    "registry_url": None,
    "description": "",
    "cap_groups": [{"name": "echo", "caps": [identity_cap(), ECHO]}],
    "later": "of another version",
}
FIELDS, URNS, ARGUMENTS = ManifestRule.FIELDS, ManifestRule.URNS, ManifestRule.ARGUMENTS


def faults(change: str, value: Any) -> list[tuple[ManifestRule, str]]:
    """Return the faults of the manifest in which what `change` leads to is replaced (or taken out: ...)."""
    changed = copy.deepcopy(MANIFEST)
    *path, last = [int(step) if step.isdigit() else step for step in change.split(".")]
    holder: Any = changed
    for step in path:
        holder = holder[step]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return [(fault.rule, fault.text) for fault in manifest_faults(json.dumps(changed).encode())]


def test_a_good_one_has_none() -> None:
    assert manifest_faults(json.dumps(MANIFEST).encode()) == []


CAP = "cap_groups.0.caps.1"


@pytest.mark.parametrize(
    ("change", "value", "rule", "complaint"),
    [
        ("name", ..., FIELDS, "the manifest needs name"),
        ("version", 1, FIELDS, "version must be a non-empty text, not 1"),
        ("channel", "beta", FIELDS, "channel must be release or nightly, not 'beta'"),
        ("registry_url", ..., FIELDS, "registry_url must be there, null or a text"),
        ("cap_groups.0", 5, FIELDS, "cap_groups[0] must be a map, not 5"),
        ("cap_groups.0.name", ..., FIELDS, "cap_groups[0] needs name"),
        (CAP, None, FIELDS, "cap_groups[0].caps[1] must be a map, not None"),
        (f"{CAP}.title", "", FIELDS, "title must be a non-empty text"),
        (f"{CAP}.aliases", [], FIELDS, "aliases must be a non-empty list of texts, not []"),
        (f"{CAP}.aliases", [1], FIELDS, "aliases must be a non-empty list of texts, not [1]"),
        (f"{CAP}.args.0.required", "yes", FIELDS, "required must be true or false, not 'yes'"),
        (f"{CAP}.args.0.help", "me", FIELDS, "args[0] has the unknown key 'help', which hosts refuse"),
        (f"{CAP}.args.1.sources", [], FIELDS, "sources must name where the value comes from"),
        (f"{CAP}.args.1.sources.0", {"position": -1}, FIELDS, "position must be an integer of at least 0, not -1"),
        (f"{CAP}.args.1.sources.0", {"position": True}, FIELDS, "position must be an integer of at least 0, not True"),
        (f"{CAP}.args.1.sources.0", {"env": "X"}, FIELDS, "must be a map with one of stdin, position, cli_flag"),
        (f"{CAP}.outputs.0.output_description", ..., FIELDS, "outputs[0] needs output_description"),
        (f"{CAP}.outputs.0.is_list", True, FIELDS, "outputs[0] has the unknown key 'is_list'"),
        (f"{CAP}.urn", "cap:out=media:octets;in=media:octets;echo", URNS, "its canonical form is cap:echo;in="),
        (f"{CAP}.urn", "chat", URNS, "cap 'chat' is not a cap URN"),
        (f"{CAP}.args.1.media_urn", "count", URNS, "args[1].media_urn is not a media URN"),
        (f"{CAP}.args.1.media_urn", "media:b;a", URNS, "its canonical form is media:a;b"),
        (f"{CAP}.args.0.sources.0", {"cli_flag": "--x"}, ARGUMENTS, "args must have 1 with a stdin source"),
        (f"{CAP}.outputs", [], ARGUMENTS, "outputs must have one equivalent to out=media:octets, not 0"),
        (f"{CAP}.args.1.name", "no name", FIELDS, "args[1].name must be a letter or _"),
        (f"{CAP}.args.1.sources.0", {"position": 1}, ARGUMENTS, "positions of args must be 0, 1, 2… without gaps"),
        (f"{CAP}.args.0.accepts", "all", ARGUMENTS, "accepts cannot stand beside a stdin source"),
        (f"{CAP}.args.1.streaming", True, ARGUMENTS, "streaming is for the main input only"),
        (f"{CAP}.outputs.0.carries", "water", FIELDS, "carries must be 'input', not 'water'"),
        (f"{CAP}.args.1.name", "input", ARGUMENTS, "two args have the name 'input'"),
        (f"{CAP}.urn", "cap:echo;in=media:void;out=media:octets", ARGUMENTS, "takes no stream"),
        ("cap_groups.0.caps.0.urn", "cap:effect=none;other", ManifestRule.IDENTITY, "names no cap 'cap:effect=none'"),
    ],
)  # fmt: skip
def test_a_fault_is_named(change: str, value: Any, rule: ManifestRule, complaint: str) -> None:
    found = faults(change, value)
    assert any(seen is rule and complaint in text for seen, text in found), found


@pytest.mark.parametrize("data", [b"", b"[]", b"nonsense", b"\xff", b"[" * 100_000, b'{"cap_groups": {"name": 1}}'])
def test_nonsense_is_a_fault(data: bytes) -> None:
    assert manifest_faults(data)


def test_all_are_told_at_once() -> None:
    rules = {fault.rule for fault in manifest_faults(b'{"cap_groups": [{"caps": [{"urn": "x", "args": [{}]}]}]}')}
    assert rules == {FIELDS, URNS, ManifestRule.IDENTITY}
