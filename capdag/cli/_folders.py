"""Where servers put their sockets and run files: a folder that is this user's alone."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

from capdag.errors import AttributionClass, CapdagError
from capdag.folders import others_may_replace

HAS_UNIX_SOCKETS = sys.platform != "win32"


class FolderError(CapdagError):
    """The folder for sockets cannot be used. The text names it and the remedy."""

    attribution = AttributionClass.ENVIRONMENT


def where_sockets_are() -> str:
    """Return which folder is used for sockets, and by which variable, as people read it."""
    variable = "XDG_RUNTIME_DIR" if os.environ.get("XDG_RUNTIME_DIR") else "TMPDIR, as XDG_RUNTIME_DIR is not set"
    return f"{runtime_folder()} (chosen by {variable})"


def runtime_folder() -> Path:
    """Return the folder for sockets and run files, made if needed with mode 0700.

    `$XDG_RUNTIME_DIR/capdag`, or a folder named after the user under the system's temporary folder. Others can write
    to the latter's parent, so an existing one is used only if it is ours alone. Raises FolderError otherwise.
    On Windows the temporary folder is the user's own.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base, "capdag") if base else Path(tempfile.gettempdir(), _OWN_NAME)
    try:
        is_open = others_may_replace(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise FolderError(
            f"cannot make {folder} for the sockets: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if is_open:
        raise FolderError(
            f"others may write to {folder.parent}, and so take over the sockets in it: give it the mode 0700 (chmod"
            f" 700 {folder.parent}), or set XDG_RUNTIME_DIR to another folder"
        )
    if not stat.S_ISDIR(facts.st_mode) or not _is_private(facts):
        raise FolderError(
            f"{folder} must be a folder of this user's alone (mode 0700), since whoever can write there can take over"
            " the sockets; remove it, or set XDG_RUNTIME_DIR to another folder"
        )
    return folder


if sys.platform == "win32":
    _OWN_NAME = "capdag"

    def _is_private(_: os.stat_result) -> bool:
        return True
else:
    _OWN_NAME = f"capdag-{os.getuid()}"

    def _is_private(facts: os.stat_result) -> bool:
        return facts.st_uid == os.getuid() and not facts.st_mode & 0o077


def admin_socket(name: int | str) -> Path:
    """Return the path of the socket by which commands reach a server: by its port, or the name of a host process."""
    return runtime_folder() / f"{name}.sock"


def admin_sockets() -> list[Path]:
    """Return the admin sockets of every server of this user, those of killed ones too.

    Raises FolderError where the system has no such sockets.
    """
    if not HAS_UNIX_SOCKETS:
        raise FolderError(
            "a running server is asked over a unix socket, which Windows does not have: its GET /healthz tells whether"
            " it serves; to reset a cartridge or to read the configuration again, restart it"
        )
    return sorted(runtime_folder().glob("*.sock"))
