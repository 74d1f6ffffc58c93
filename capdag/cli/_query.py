"""Asking running servers over their admin sockets."""

from __future__ import annotations

import json
import socket
import struct
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from capdag.errors import AttributionClass, CapdagError

LOCAL = "local"
"""The name that the host in a server's own process is attached under."""

PATIENCE = 5.0
"""Seconds that a server has for its answer."""


class NoServerError(CapdagError):
    """Nothing answers at a server's admin socket."""

    code = "NO_HANDLER"
    attribution = AttributionClass.ENVIRONMENT


class NoAnswerError(CapdagError):
    """A server is there, and does not answer in time. The text names it and its process."""

    code = "MASTER_DIED"
    attribution = AttributionClass.ENVIRONMENT


class _UnixConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path
        self.pid = 0
        """The process that listens, 0 where the system does not tell."""

    def connect(self) -> None:
        if sys.platform == "win32":
            raise NoServerError("there are no unix sockets on Windows")
        else:  # noqa: RET506 - type checkers know which branch is for which system
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(PATIENCE)
            self.sock.connect(str(self._path))
            if sys.platform == "linux":
                facts = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                self.pid = struct.unpack("3i", facts)[0]


def ask_ps(path: Path) -> dict[str, Any]:
    """Return what a server runs. Raises NoServerError, NoAnswerError."""
    status, answer = _request("GET", path, "/_capdag/ps")
    if status != 200:
        raise CapdagError(f"the server at {path} answered {status}: {_message(answer)}")
    return answer


def ask_reset(path: Path, name: str) -> str | None:
    """Reset a cartridge; returns why not, or None if it was done. Raises as `ask_ps`."""
    status, answer = _request("POST", path, f"/_capdag/reset/{quote(name)}")
    return None if status == 200 else _message(answer)


def ask_reload(path: Path) -> dict[str, Any] | str:
    """Have a server read its cartridges again; returns what has changed, or why it did not. Raises as `ask_ps`."""
    status, answer = _request("POST", path, "/_capdag/reload")
    return answer if status == 200 else _message(answer)


def something_listens(port: int) -> bool:
    """Return whether a program of this machine takes connections on a port of the loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except OSError:
        return False
    return True


def _request(method: str, path: Path, target: str) -> tuple[int, dict[str, Any]]:
    connection = _UnixConnection(path)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except TimeoutError:
        process = f" (pid {connection.pid})" if connection.pid else ""
        raise NoAnswerError(
            f"{title(path.stem)}{process} did not answer in {PATIENCE:g} s: is it stopped, or without memory?"
        ) from None
    except (OSError, HTTPException, ValueError) as error:
        raise NoServerError(f"no server answers at {path}: {error}") from None
    finally:
        connection.close()


def title(server: str) -> str:
    """Return what a server is called, by the name of its socket."""
    return f"port {server}" if server.isdigit() else server


def _message(answer: dict[str, Any]) -> str:
    error = answer.get("error")
    return str(error.get("message")) if isinstance(error, dict) else str(answer)
