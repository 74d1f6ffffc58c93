"""The host runtime: spawns cartridges, routes frames to and from them, watches over them (protocol-spec/host.md)."""

from .attached import AttachError
from .lifecycle import State
from .runtime import HostRuntime
from .settings import CartridgeRecord, HostSettings

__all__ = ["AttachError", "CartridgeRecord", "HostRuntime", "HostSettings", "State"]
