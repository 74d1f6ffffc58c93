"""Where servers put their sockets and run files: a folder that is this user's alone."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from capdag.errors import AttributionClass, CapdagError


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
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(base, "capdag") if base else Path(tempfile.gettempdir(), f"capdag-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise FolderError(
            f"cannot make {folder} for the sockets: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise FolderError(
            f"{folder} must be a folder of this user's alone (mode 0700), since whoever can write there can take over"
            " the sockets; remove it, or set XDG_RUNTIME_DIR to another folder"
        )
    return folder


def admin_socket(name: int | str) -> Path:
    """Return the path of the socket by which commands reach a server: by its port, or the name of a host process."""
    return runtime_folder() / f"{name}.sock"


def admin_sockets() -> list[Path]:
    """Return the admin sockets of every server of this user, those of killed ones too."""
    return sorted(runtime_folder().glob("*.sock"))
