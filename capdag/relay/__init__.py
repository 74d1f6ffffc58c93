"""The relay room: the switch that joins callers and hosts (protocol-spec/wire.md, Relay)."""

from ._masters import Capability
from ._request import Request
from ._settings import SwitchSettings
from ._switch import Health, Switch, open_switch

__all__ = ["Capability", "Health", "Request", "Switch", "SwitchSettings", "open_switch"]
