"""Learning what a cartridge can do by starting it, while the others are served."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from capdag.cli import _learn
from capdag.cli._admin import LocalAdmin
from capdag.cli._learn import learn_caps
from capdag.host import CartridgeRecord, HostRuntime, HostSettings
from capdag.relay import Switch, open_switch
from capdag.transport import local_link_pair
from capdag.transport.guardian import new_run_id, open_guardian
from capdag.wire import IDENTITY_CAP
from tests.cli.upper import UPPER

SCRIPT = Path(__file__).with_name("upper.py")
UPPER_SOURCE = SCRIPT.read_bytes()
UPPER_RECORD = CartridgeRecord(id="upper", command=[sys.executable, str(SCRIPT)])
KNOWN_RECORD = CartridgeRecord(id="known", command=["never-started"], caps=[{"urn": "cap:known"}])
SILENT_RECORD = CartridgeRecord(id="silent", command=[sys.executable, "-c", "import time; time.sleep(600)"])


@asynccontextmanager
async def _hosting(
    *records: CartridgeRecord, settings: HostSettings | None = None
) -> AsyncIterator[tuple[HostRuntime, Switch]]:
    async with open_guardian(new_run_id()) as guardian, open_switch() as switch, trio.open_nursery() as nursery:
        upper, lower = local_link_pair("local")
        host = HostRuntime(records, lower, guardian, settings)
        lower.connect(host.receiver)
        upper.connect(switch.attach(upper, "local"))
        await nursery.start(host.run)
        await switch.wait_for(IDENTITY_CAP)
        yield host, switch
        await host.shutdown()
        nursery.cancel_scope.cancel()


def _state(host: HostRuntime, name: str) -> dict[str, Any]:
    cartridges: list[dict[str, Any]] = host.snapshot()["cartridges"]
    (found,) = [cartridge for cartridge in cartridges if cartridge["id"] == name]
    return found


async def test_caps_are_learned_from_the_manifest_and_known_ones_start_nothing() -> None:
    records = (UPPER_RECORD, KNOWN_RECORD)
    async with _hosting(*records) as (host, switch):
        await learn_caps(host, records)
        aliases = {capability.text: capability.facts.get("aliases") for capability in switch.capabilities()}
        assert aliases[UPPER] == ["shout"]
        assert _state(host, "upper")["state"] == "running"
        assert _state(host, "known")["state"] == "registered"


async def test_a_silent_command_is_waited_for_within_bounds_and_named_while_others_serve(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_learn, "SLOW", 0.2)
    records = (UPPER_RECORD, SILENT_RECORD)
    async with _hosting(*records, settings=HostSettings(handshake_timeout=3)) as (host, switch):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(learn_caps, host, records)
            await switch.wait_for(UPPER)
            assert _state(host, "silent")["state"] == "starting"
        assert "cartridge 'silent' did not start: no HELLO came in 3 s" in _state(host, "silent")["trouble"]
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "waiting for cartridge silent to say what it can do (up to 3 s)" in messages


async def test_a_cartridge_that_failed_is_kept_with_its_trouble_and_a_reset_tries_it_again(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    record = CartridgeRecord(id="late", command=[sys.executable, str(script)])
    async with _hosting(record) as (host, switch):
        await learn_caps(host, [record])
        assert "exited with status 2" in _state(host, "late")["trouble"]
        script.write_bytes(UPPER_SOURCE)
        LocalAdmin(switch, host).reset("late")
        with trio.fail_after(20):
            await switch.wait_for(UPPER)
        assert _state(host, "late")["trouble"] is None
