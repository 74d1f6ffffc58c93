"""What is wrong with a manifest, all at once."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from capdag.wire.manifest import identity_cap, read_manifest
from capdag.wire.manifest_rules import ManifestFault, ManifestRule, manifest_faults, pool_faults

ECHO: dict[str, Any] = {
    "urn": "cap:echo;in=media:octets;out=media:octets",
    "title": "Echo",
    "aliases": ["echo"],
    "args": [
        {"media_urn": "media:octets", "name": "input", "required": True, "sources": [{"stdin": "media:octets"}]},
        {"media_urn": "media:count", "name": "times", "required": False, "sources": [{"position": 0}]},
    ],
    "outputs": [{"media_urn": "media:octets", "name": "output", "output_description": "the same"}],
}
MANIFEST: dict[str, Any] = {
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
    """Return what is wrong, and what it is about, with a manifest that is changed as in `found`."""
    return [(fault.rule, fault.text) for fault in found(change, value)]


def found(change: str, value: Any) -> list[ManifestFault]:
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
    return manifest_faults(json.dumps(changed).encode())


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
    seen = faults(change, value)
    assert any(what is rule and complaint in text for what, text in seen), seen


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (f"{CAP}.args", 5),
        (f"{CAP}.args.0", "input"),
        (f"{CAP}.args.1", ECHO["args"][0]),
        (f"{CAP}.outputs", {}),
        (f"{CAP}.outputs.0", None),
        (f"{CAP}.aliases", "echo"),
    ],
)
def test_a_cap_that_nobody_can_call_is_fatal(change: str, value: Any) -> None:
    assert any(fault.is_fatal for fault in found(change, value))


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (f"{CAP}.title", ...),
        (f"{CAP}.args", ...),
        (f"{CAP}.outputs", ...),
        (f"{CAP}.aliases", []),
        (f"{CAP}.args.0.sources", []),
        (f"{CAP}.args.0.sources.0", {"env": "X"}),
        (f"{CAP}.args.0.required", "yes"),
        (f"{CAP}.args.0.sources.0", {"stdin": "media:other"}),
        (f"{CAP}.urn", "cap:out=media:octets;in=media:octets;echo"),
        ("pool_declarations", 5),
    ],
)
def test_what_a_host_can_do_without_is_not_fatal(change: str, value: Any) -> None:
    assert [fault.is_fatal for fault in found(change, value)].count(False) >= 1
    assert not any(fault.is_fatal for fault in found(change, value))


def test_a_cap_that_is_listed_twice_is_told_in_whatever_spelling() -> None:
    again = {**ECHO, "urn": "cap:out=media:octets;in=media:octets;echo"}
    doubled = {**MANIFEST, "cap_groups": [*MANIFEST["cap_groups"], {"name": "more", "caps": [again]}]}
    (told,) = [fault for fault in manifest_faults(json.dumps(doubled).encode()) if "listed" in fault.text]
    assert told == (URNS, f"cap {ECHO['urn']!r} is listed 2 times: only the first counts", False)


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        (5, "pool_declarations must be a map, not 5"),
        ({"pools": []}, "pool_declarations.pools must be a map, not []"),
        ({"pools": {"gpu": "cap:a"}}, "pool_declarations.pools.'gpu' must be a list of cap URNs, not 'cap:a'"),
        ({"pools": {"all": []}}, "pool_declarations.pools must not name 'all'"),
        ({"pools": {"cap:a": []}}, "pool_declarations.pools must not name 'cap:a'"),
        ({"capacities": {"all": "4"}}, "pool_declarations.capacities.'all' must be an integer of at least 0, not '4'"),
    ],
)
def test_declared_pools_are_judged(declared: Any, complaint: str) -> None:
    assert any(complaint in text for _, text in faults("pool_declarations", declared))
    assert faults("pool_declarations", {"pools": {"gpu": [ECHO["urn"]]}, "capacities": {"gpu": 2, "all": 0}}) == []


def test_pools_that_hello_lacks_are_named() -> None:
    manifest = read_manifest(json.dumps({**MANIFEST, "pool_declarations": {"pools": {"gpu": []}}}).encode())
    names = ["cap:effect=none", str(ECHO["urn"]), "gpu", "all"]
    assert pool_faults(manifest, names) == []
    for name in names:
        (told,) = pool_faults(manifest, {*names} - {name})
        assert told.endswith(f"each shared pool and 'all'; there is none for {name!r}")
    many = [identity_cap(), *({**ECHO, "urn": f"cap:x{number}"} for number in range(5))]
    manifest = read_manifest(json.dumps({**MANIFEST, "cap_groups": [{"name": "g", "caps": many}]}).encode())
    (told,) = pool_faults(manifest, [])
    assert told.endswith("there is none for 'cap:effect=none', 'cap:x0', 'cap:x1', 'cap:x2' and 3 more")


@pytest.mark.parametrize("data", [b"", b"[]", b"nonsense", b"\xff", b"[" * 100_000, b'{"cap_groups": {"name": 1}}'])
def test_nonsense_is_a_fault(data: bytes) -> None:
    assert manifest_faults(data)


def test_all_are_told_at_once() -> None:
    rules = {fault.rule for fault in manifest_faults(b'{"cap_groups": [{"caps": [{"urn": "x", "args": [{}]}]}]}')}
    assert rules == {FIELDS, URNS, ManifestRule.IDENTITY}
