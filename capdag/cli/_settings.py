"""The rooms' settings out of the configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from capdag.config import Config, given
from capdag.errors import ConfigError
from capdag.gateway import GatewaySettings, TcpBind
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


def gateway_settings(config: Config) -> GatewaySettings:
    """Return the gateway's settings. Raises ConfigError for an address beyond this machine that nobody allowed."""
    table = config.gateway
    if not table.without_keys and not TcpBind(table.host, table.port).is_loopback:
        raise ConfigError(
            f"gateway.host = {table.host!r} lets other machines use the models, and no key is asked for: keep"
            " 127.0.0.1, or allow it with --without-keys (without_keys = true under [gateway])"
        )
    return GatewaySettings(**{key: value for key, value in given(table).items() if key in GatewaySettings._fields})


def models_folder(config: Config) -> Path:
    """Return the folder of model files."""
    chosen = config.models.dir
    return models_dir() if isinstance(chosen, msgspec.UnsetType) else Path(chosen).expanduser()


def shutdown_limit(config: Config) -> float:
    """Return the seconds that an ordered shutdown may take: 9 by default, and with the kills after it under 10."""
    gateway = gateway_settings(config)
    return gateway.drain + gateway.last_words + host_settings(config).stop_grace
