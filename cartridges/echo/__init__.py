"""A cartridge without an engine: what comes goes back. For the tutorial, and for tests of hosts."""

from __future__ import annotations

import sys
from pathlib import Path

from capdag.cartridge.spec import Record, SettingsOf, Spec

NAME = "echo"

ECHO = "cap:echo;in=media:octets;out=media:octets"
COUNT = 'cap:count;in="media:count;enc=utf-8";out="media:number;list"'
SLOW_ECHO = "cap:slow-echo;in=media:octets;out=media:octets"
FAIL = 'cap:fail;in="media:failure;enc=utf-8";out=media:void'


def _records(_models: Path, _settings_of: SettingsOf) -> list[Record]:
    """One process, whatever the models. Its manifest says the rest about the caps once it runs."""
    return [Record(NAME, [{"urn": urn} for urn in (ECHO, COUNT, SLOW_ECHO, FAIL)], {})]


SPEC = Spec(NAME, (sys.executable, "-m", "capdag.cartridge", "cartridges.echo.main"), (), _records)
