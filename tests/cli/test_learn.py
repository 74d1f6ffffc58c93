"""Learning what a cartridge can do by starting it once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capdag.cli import _learn
from capdag.cli._learn import learn_caps
from capdag.cli._roster import Roster
from capdag.host import CartridgeRecord, HostSettings
from capdag.transport.guardian import new_run_id, open_guardian
from tests.cli.upper import UPPER

UPPER_RECORD = CartridgeRecord(id="upper", command=[sys.executable, str(Path(__file__).with_name("upper.py"))])
KNOWN_RECORD = CartridgeRecord(id="known", command=["never-started"], caps=[{"urn": "cap:known"}])
SILENT_RECORD = CartridgeRecord(id="silent", command=[sys.executable, "-c", "import time; time.sleep(600)"])


async def test_caps_are_learned_from_the_manifest_and_known_ones_kept() -> None:
    async with open_guardian(new_run_id()) as guardian:
        learned = await learn_caps(Roster([UPPER_RECORD, KNOWN_RECORD], ["a notice"]), guardian, HostSettings())
    upper, known = learned.records
    assert [(cap["urn"], cap["aliases"]) for cap in upper.caps] == [(UPPER, ["shout"])]
    assert upper.command == UPPER_RECORD.command
    assert known is KNOWN_RECORD
    assert learned.notices == ["a notice"]


async def test_a_command_that_is_no_cartridge_is_waited_for_within_bounds_and_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_learn, "SLOW", 0.2)
    async with open_guardian(new_run_id()) as guardian:
        roster = Roster([UPPER_RECORD, SILENT_RECORD], [])
        learned = await learn_caps(roster, guardian, HostSettings(handshake_timeout=3))
    assert [record.id for record in learned.records] == ["upper"]
    assert learned.notices == ["NOT SERVED: cartridge 'silent' did not start: no HELLO came in 3 s"]
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("waiting for ")
    assert message.endswith("silent to say HELLO, up to 3 s in all")
