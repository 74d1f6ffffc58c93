"""What a check is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to check a cartridge. Times in seconds."""

    cap: str | None = None
    """The cap that carries data: a URN of the manifest, or an alias. None: the kit chooses by their shape."""
    input: bytes | None = None
    """What `cap` is given as its main argument. None: what the kit knows for its media."""
    env: Mapping[str, str] = {}
    cwd: Path | None = None
    start_timeout: float = 30.0
    """For HELLO, from the start of the process on."""
    timeout: float = 10.0
    """For each frame that the cartridge owes."""
    reply_timeout: float = 5.0
    """For the reply to a heartbeat, whatever the handlers do."""
    exit_timeout: float = 3.0
    """For the end of the process: the protocol's 2 s after the end of stdin, and a second for a busy machine."""
    settle: float = 0.1
    """What is waited where nothing may come."""
