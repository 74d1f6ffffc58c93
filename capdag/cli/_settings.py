"""The rooms' settings out of the configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from capdag.config import Config, given
from capdag.host import HostSettings
from capdag.models import models_dir
from capdag.relay import SwitchSettings
from capdag.wire import NetworkPolicy


def host_settings(config: Config) -> HostSettings:
    """Return the host's settings. Raises ConfigError for values that contradict each other."""
    return HostSettings(**{**given(config.host), "policy": NetworkPolicy(config.host.policy)})


def switch_settings(config: Config) -> SwitchSettings:
    """Return the switch's settings: it tells every host the network policy."""
    return SwitchSettings(policy=NetworkPolicy(config.host.policy))


def models_folder(config: Config) -> Path:
    """Return the folder of model files."""
    chosen = config.models.dir
    return models_dir() if isinstance(chosen, msgspec.UnsetType) else Path(chosen).expanduser()
