"""RELAY_NOTIFY: what a host offers to the switch (protocol-spec/wire.md, Relay)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from capdag.errors import RemoteProtocolError
from capdag.urn import CapUrn, UrnError

from .documents import read_json
from .frame import Frame, FrameType, show_value
from .limits import Limits, read_limits
from .pools import PoolState, pools_of
from .view import FrameView


class Offer(NamedTuple):
    """One cap of one installed cartridge: `facts` is the cap's manifest object, `install` the record it stands in."""

    urn: CapUrn
    facts: Mapping[str, Any]
    install: Mapping[str, Any]


class InstallIdentity(NamedTuple):
    """What tells one installed cartridge of a host from all others: another file or version is another install."""

    registry_url: str | None
    channel: str
    id: str
    version: str
    sha256: str


class InstallRecord(NamedTuple):
    """One checked record. `pools` are empty where it tells none; `caps` are empty where it cannot serve."""

    identity: InstallIdentity
    running: bool
    pools: Mapping[str, PoolState]
    caps: list[Offer]


class Notice(NamedTuple):
    """A checked RELAY_NOTIFY. `installs` are the records as they came, `records` what was read of them, in order.

    `host_id` is what the host tells itself apart by; the public host tells none.
    """

    limits: Limits
    installs: list[Mapping[str, Any]]
    records: list[InstallRecord]
    stats: Mapping[str, Any] | None
    host_id: str | None = None

    @property
    def caps(self) -> list[Offer]:
        """All that is offered, in order."""
        return [offer for record in self.records for offer in record.caps]


def notify_frame(
    limits: Limits,
    installs: list[Mapping[str, Any]],
    stats: Mapping[str, Any] | None = None,
    host_id: str | None = None,
) -> Frame:
    """Build a RELAY_NOTIFY."""
    payload: dict[str, Any] = {"installed_cartridges": installs}
    if stats is not None:
        payload["host_protocol_stats"] = stats
    if host_id is not None:
        payload["host_id"] = host_id
    return Frame(FrameType.RELAY_NOTIFY, 0, meta={"manifest": _to_json(payload), **limits._asdict()})


def record_size(install: Mapping[str, Any]) -> int:
    """Return how many bytes longer a RELAY_NOTIFY is at most for naming one more record."""
    return len(_to_json(install)) + 1


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def read_notify(view: FrameView) -> Notice:
    """Read a RELAY_NOTIFY. Raises RemoteProtocolError naming the record and field at fault."""
    limits = read_limits(view.meta, optional=True)
    payload = read_json(view.meta.get("manifest"), "the manifest of RELAY_NOTIFY")
    installs = payload.get("installed_cartridges") if isinstance(payload, dict) else None
    if not isinstance(installs, list):
        raise RemoteProtocolError("the manifest of RELAY_NOTIFY needs installed_cartridges as a list")
    stats, host_id = payload.get("host_protocol_stats"), payload.get("host_id")
    return Notice(
        limits,
        installs,
        list(map(_read_record, installs)),
        stats if isinstance(stats, dict) else None,
        host_id if isinstance(host_id, str) else None,
    )


def _read_record(install: object) -> InstallRecord:
    stats = install.get("runtime_stats") if isinstance(install, dict) else None
    if not isinstance(install, dict) or not isinstance(stats, dict):
        raise RemoteProtocolError("an installed cartridge must be an object with runtime_stats as an object")
    if install.get("channel") not in ("release", "nightly"):
        raise RemoteProtocolError(
            f"installed cartridge channel must be release or nightly, not {show_value(install.get('channel'))}"
        )
    try:
        pools = pools_of(stats.get("pools") or {})
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"installed cartridge {show_value(install.get('id'))}: {error}") from None
    if "registry_url" not in install or not isinstance(install["registry_url"], (str, type(None))):
        seen = show_value(install["registry_url"]) if "registry_url" in install else "nothing"
        raise RemoteProtocolError(
            f"installed cartridge {show_value(install.get('id'))} needs registry_url, null or a text, not {seen}"
        )
    identity = InstallIdentity(
        install["registry_url"],
        install["channel"],
        *(str(install.get(key) or "") for key in ("id", "version", "sha256")),
    )
    return InstallRecord(identity, stats.get("running") is True, pools, _caps_of(install))


def _caps_of(install: Mapping[str, Any]) -> list[Offer]:
    if install.get("attachment_error"):
        return []
    found: list[Offer] = []
    for group in _list_of(install, "cap_groups"):
        for cap in _list_of(group, "caps"):
            text = cap.get("urn") if isinstance(cap, dict) else None
            try:
                found.append(Offer(CapUrn.parse(str(text)), cap, install))
            except UrnError as error:
                raise RemoteProtocolError(
                    f"installed cartridge {show_value(install.get('id'))}: cap {show_value(text)}: {error}"
                ) from None
    return found


def _list_of(holder: object, key: str) -> list[Any]:
    """Return the list under `key`, which may be left out."""
    found = holder.get(key) or [] if isinstance(holder, dict) else None
    if not isinstance(found, list):
        raise RemoteProtocolError(f"installed cartridge: {key} must be a list, not {show_value(found)}")
    return found
