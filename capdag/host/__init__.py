"""The host runtime: spawns cartridges, routes frames to and from them, watches over them (protocol-spec/host.md)."""

from .lifecycle import State
from .runtime import HostRuntime
from .settings import CartridgeRecord, HostSettings

__all__ = ["CartridgeRecord", "HostRuntime", "HostSettings", "State"]
