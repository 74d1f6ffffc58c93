"""`capdag serve`: gateway, switch and host in one process, or in two with --split."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ._options import (
    config_option,
    listen_options,
    log_option,
    log_to_stderr,
    roster_options,
    settle_config,
    trace_options,
)


@click.command()
@config_option
@listen_options
@roster_options
@trace_options
@click.option("--split", is_flag=True, help="Run the host and the gateway as two processes, joined by a socket.")
@log_option("info")
def serve(
    config_file: Path | None,
    host: str | None,
    port: int | None,
    without_keys: bool,
    models_dir: str | None,
    commands: tuple[str, ...],
    trace_dir: str | None,
    trace_payloads: bool,
    split: bool,
    log_level: str,
) -> None:
    """Serve models over HTTP to any OpenAI client.

    Without options it serves every model in the models folder, with every engine that is installed, at
    http://127.0.0.1:8080/v1. Engines are started at the first request. Ctrl-C gives running answers drain seconds
    (under [gateway], 4), ends the rest with an error and leaves nothing behind; a second one hurries.

    \b
    Examples:
      capdag serve
      capdag serve --port 9000 --models ~/weights
      capdag serve --cartridge 'python3 my_cartridge.py'
      capdag serve --config capdag.toml --split
    \b
    A configuration file (every key has a default):
      [gateway]
      port = 9000
      [models]
      dir = "/data/weights"
      slots = 4                       # requests at once, per model
      context = 4096                  # tokens for each of them
      [gateway.links]
      hosts = ["tls:models.example:7070"]   # serve what these have, too (docs/links.md)
      [[cartridge]]
      name = "mine"
      command = ["python3", "my_cartridge.py"]
    """
    settle = partial(
        settle_config,
        config_file,
        models_dir=models_dir,
        host=host,
        port=port,
        without_keys=without_keys,
        trace_dir=trace_dir,
        trace_payloads=trace_payloads,
    )
    if split:
        config = settle()
        log_to_stderr(log_level)
        from ._split import run_split

        shared = [*_words("--config", config_file), "--log-level", log_level]
        roster = [*_words("--models", models_dir), *(word for command in commands for word in ("--cartridge", command))]
        roster += [*_words("--trace", trace_dir), *(["--trace-payloads"] if trace_payloads else [])]
        listen = [*_words("--host", host), *_words("--port", port), *(["--without-keys"] if without_keys else [])]
        run_split(config, host=[*shared, *roster], gateway=[*shared, *listen])
    else:
        from ._server import run_server

        log_to_stderr(log_level)
        run_server(settle, commands)


def _words(option: str, value: object) -> list[str]:
    """Return an option as command-line words, none if it was not given."""
    return [] if value is None else [option, str(value)]
