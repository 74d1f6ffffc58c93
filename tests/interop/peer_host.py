"""The public `capdag` package's host: `peer_host.py SOCKET CARTRIDGE...`.

Runs in that package's own environment, on its public API alone. It connects to the switch that listens at SOCKET and
starts each cartridge, a program, at the first request for it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from capdag.bifaci.cartridge_repo import CartridgeChannel  # type: ignore[import-not-found]
from capdag.bifaci.host_runtime import CartridgeHost  # type: ignore[import-not-found]


def connect(path: str) -> socket.socket:
    """Connect as soon as somebody listens."""
    sock = socket.socket(socket.AF_UNIX)
    while True:
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.02)
        else:
            return sock


def manifest_of(program: str) -> dict[str, Any]:
    """Return what a cartridge says of itself."""
    manifest: dict[str, Any] = json.loads(subprocess.check_output([program, "manifest"]))
    return manifest


def main() -> None:
    """Run until the socket ends; the package then lets go of its cartridges."""
    path, *programs = sys.argv[1:]
    host = CartridgeHost()
    with ThreadPoolExecutor() as pool:
        for program, manifest in zip(programs, pool.map(manifest_of, programs), strict=True):
            channel = CartridgeChannel(manifest["channel"])
            host.register_cartridge(
                program, manifest["name"], manifest["version"], channel, None, manifest["cap_groups"]
            )
    relay = connect(path)
    host.run(relay.makefile("rb"), relay.makefile("wb"))


if __name__ == "__main__":
    main()
