"""Which folders are safe for sockets (protocol-spec/links.md, K2)."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def others_may_replace(folder: Path) -> bool:
    """Return whether another user could put something else in the place of what is in a folder.

    It must be this user's or root's, and writable by its owner only, or have the sticky bit. Windows, whose modes do
    not tell, has no such sockets. Raises OSError.
    """
    facts = folder.stat()
    if sys.platform == "win32":
        return False
    else:  # noqa: RET505 - type checkers know which branch is for which system
        others_write = bool(facts.st_mode & 0o022) and not facts.st_mode & stat.S_ISVTX
        return others_write or facts.st_uid not in (0, os.geteuid())
