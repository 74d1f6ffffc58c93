"""The rooms' settings out of the configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from capdag.config import Config, given
from capdag.errors import ConfigError
from capdag.host import HostSettings
from capdag.models import models_dir
from capdag.relay import SwitchSettings
from capdag.wire import NetworkPolicy


def host_settings(config: Config) -> HostSettings:
    """Return the host's settings. Raises ConfigError for values that contradict each other."""
    own = {key: value for key, value in given(config.host).items() if key != "links"}
    return HostSettings(**{**own, "policy": NetworkPolicy(config.host.policy)})


def switch_settings(config: Config) -> SwitchSettings:
    """Return the switch's settings: it tells every host the network policy."""
    return SwitchSettings(policy=NetworkPolicy(config.host.policy), **given(config.switch))


def models_folder(config: Config) -> Path:
    """Return the folder of model files, which may not be there yet."""
    chosen = config.models.dir
    return models_dir() if isinstance(chosen, msgspec.UnsetType) else Path(chosen).expanduser()


def checked_models_folder(config: Config) -> Path:
    """Return the folder of model files. Raises ConfigError if one was chosen that is no folder."""
    folder = models_folder(config)
    if not isinstance(config.models.dir, msgspec.UnsetType) and not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise ConfigError(
            f"the models folder {folder} {what}: give another with --models (dir under [models]), or make it"
        )
    return folder
