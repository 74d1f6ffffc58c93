"""The manifest, as the strictest host reads it."""

from __future__ import annotations

import json

from capdag.wire.manifest_rules import ManifestRule, manifest_faults

from .._bench import Bench
from .._case import CaseFailed, case

_SHOWN = 12


async def _faultless(bench: Bench, rule: ManifestRule) -> None:
    session = await bench.shared()
    assert session.hello is not None
    faults = [fault.text for fault in manifest_faults(session.hello.manifest) if fault.rule is rule]
    if faults:
        more = f" (and {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
        raise CaseFailed("; ".join(faults[:_SHOWN]) + more)


@case(
    "manifest",
    "the manifest has every field that hosts need, and no wrong one",
    "wire.md, Manifest",
    remedy="write the fields of the table in wire.md, Manifest; leave out what it does not name in an arg or an output",
)
async def manifest(bench: Bench) -> None:
    await _faultless(bench, ManifestRule.FIELDS)


@case(
    "manifest-identity",
    "the manifest names cap:effect=none, spelled exactly so",
    "wire.md L13",
    remedy="add the identity cap of wire.md, Manifest, to a group",
)
async def manifest_identity(bench: Bench) -> None:
    await _faultless(bench, ManifestRule.IDENTITY)


@case(
    "manifest-urns",
    "the manifest's URNs can be read and are canonical, and no cap is listed twice",
    "wire.md, Manifest; urn.md",
    remedy="list each cap once; sort the tags, leave out in and out where they are media:, quote only where needed",
)
async def manifest_urns(bench: Bench) -> None:
    await _faultless(bench, ManifestRule.URNS)


@case(
    "manifest-arguments",
    "each cap has one argument on stdin of its in=, and one output of its out= (none where it is media:void)",
    "wire.md, Manifest",
    remedy="declare args and outputs as the URN says",
)
async def manifest_arguments(bench: Bench) -> None:
    await _faultless(bench, ManifestRule.ARGUMENTS)


@case(
    "manifest-command",
    "started with the argument `manifest` the cartridge prints the manifest of its HELLO and exits with 0",
    "wire.md, Framing",
    remedy="look at the arguments before anything else: any of them means that a person started it",
)
async def manifest_command(bench: Bench) -> None:
    session = await bench.shared()
    assert session.hello is not None
    said = await bench.say("manifest")
    if said.status is None:
        raise CaseFailed(f"it had not ended after {bench.settings.start_timeout:g} s")
    if said.status.code != 0:
        raise CaseFailed(f"it {said.status.describe()}; its stderr ends: {said.stderr[-200:]}")
    try:
        printed = json.loads(said.stdout)
    except ValueError:
        raise CaseFailed(f"what it printed is no JSON: {said.stdout[:80]!r}") from None
    if printed != json.loads(session.hello.manifest):
        raise CaseFailed("what it printed is another manifest than that of HELLO")


CASES = (manifest, manifest_identity, manifest_urns, manifest_arguments, manifest_command)
