"""Options that several commands share, and how they override the file."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from capdag.config import Config, read_config
from capdag.errors import ConfigError

from ._saying import LogLine

_Command = TypeVar("_Command", bound=Callable[..., Any])

_LOG_LEVELS = ("debug", "info", "warning", "error")


def config_option(command: _Command) -> _Command:
    """Add --config FILE."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read settings from a TOML file.",
    )(command)


def models_option(command: _Command) -> _Command:
    """Add --models DIR."""
    return click.option("--models", "models_dir", metavar="DIR", help="Look for model files in this folder.")(command)


def roster_options(command: _Command) -> _Command:
    """Add the options that say which cartridges a host has: --models DIR and --cartridge COMMAND."""
    command = click.option(
        "--cartridge",
        "commands",
        multiple=True,
        metavar="COMMAND",
        help="Add a cartridge in any language: the command that starts it, as in a shell. May be repeated.",
    )(command)
    return models_option(command)


def trace_options(command: _Command) -> _Command:
    """Add the options that record frames: --trace DIR and --trace-payloads."""
    command = click.option(
        "--trace-payloads", is_flag=True, help="With --trace: keep contents, which are masked else."
    )(command)
    return click.option("--trace", "trace_dir", metavar="DIR", help="Record every cartridge's frames in this folder.")(
        command
    )


def listen_options(command: _Command) -> _Command:
    """Add the options that say where HTTP listens: --host, --port and --without-keys."""
    command = click.option(
        "--without-keys", is_flag=True, help="Allow an address that other machines reach, although no key is asked for."
    )(command)
    command = click.option(
        "--port", type=click.IntRange(0, 65_535), metavar="N", help="Port; 0 takes a free one. [8080]"
    )(command)
    return click.option("--host", metavar="ADDR", help="Address to listen on. [127.0.0.1]")(command)


def log_option(default: str) -> Callable[[_Command], _Command]:
    """Add --log-level."""
    return click.option(
        "--log-level",
        type=click.Choice(_LOG_LEVELS),
        default=default,
        show_default=True,
        help="Least severe messages to log on stderr.",
    )


def settle_config(
    file: Path | None,
    *,
    models_dir: str | None = None,
    host: str | None = None,
    port: int | None = None,
    without_keys: bool = False,
    trace_dir: str | None = None,
    trace_payloads: bool = False,
) -> Config:
    """Return the configuration of the file, or the defaults, with what the command line overrides.

    Raises ConfigError as `read_config` does.
    """
    config = Config() if file is None else read_config(file)
    asked = {"host": host, "port": port, "without_keys": without_keys or None}
    gateway = msgspec.structs.replace(
        config.gateway, **{key: value for key, value in asked.items() if value is not None}
    )
    models = config.models if models_dir is None else msgspec.structs.replace(config.models, dir=models_dir)
    trace = config.trace
    if trace_dir is not None:
        trace = msgspec.structs.replace(trace, dir=trace_dir, payloads=trace_payloads)
    elif trace_payloads:
        raise ConfigError("--trace-payloads keeps the contents of what --trace DIR records: give both")
    return msgspec.structs.replace(config, gateway=gateway, models=models, trace=trace)


def log_to_stderr(level: str) -> None:
    """Send the log to stderr, a line a message."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
